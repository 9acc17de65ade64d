"""Texts of hosts and programs in good order, and of quite other things: nothing is invented."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from volta_doctor.findings import Status
from volta_doctor.report import Report

Why = Callable[[Mapping[str, str | bytes]], Report]
DATA = Path(__file__).parents[2] / "data/doctor/why_healthy"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(DATA.glob("*.yaml"))
    for case in yaml.safe_load(path.read_text())
]
BROKEN = (Status.FAIL, Status.WARN)
KERNEL = (
    'audit: type=1400 apparmor="ALLOWED" operation="open" comm="python3" pid={n}',
    "docker0: port 1(veth{n:07x}) entered blocking state",
    "docker0: port 1(veth{n:07x}) entered disabled state",
    "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate",
    "TCP: request_sock_TCP: Possible SYN flooding on port 8000. Sending cookies.",
    "CPU{core}: Core temperature/speed normal",
    "EXT4-fs (md0): mounted filesystem with ordered data mode. Quota mode: none.",
    "nvidia 0000:3b:00.0: enabling device (0140 -> 0142)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.82.07  Tue Aug 26 00:00:00 UTC 2025",
    "nvidia-uvm: Loaded the UVM driver, major device number 235.",
    "r8169 0000:04:00.0 eno1: Link is Up - 1Gbps/Full - flow control rx/tx",
    "python3[{n}]: segfault at 18 ip 00007f0 sp 00007ff error 4 in libc.so.6[7f0+195000]",
)
SERVER = (
    'INFO:     10.0.0.{core}:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    'INFO:     10.0.0.{core}:{n} - "GET /health HTTP/1.1" 200 OK',
    'INFO:     10.0.0.{core}:{n} - "GET /v1/model HTTP/1.1" 404 Not Found',
    "INFO 04-18 07:{core:02}:11 [metrics.py:486] Avg prompt throughput: {n} tokens/s, Running: 2"
    " reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 7.1%",
    "INFO 04-18 07:{core:02}:12 [logger.py:39] Received request chatcmpl-{n:08x}: prompt: 'Why is"
    " the loss NaN in fp16, and what is CUDA?', params: SamplingParams(n=1, seed=None)",
    "WARNING 04-18 07:{core:02}:13 [scheduler.py:1803] Sequence group {n} is preempted by"
    " PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.",
)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_blamed(case: dict[str, Any], why: Why) -> None:
    """`info` names the facts that it may tell, `asks` what it may ask for."""
    report = why({case.get("file", "paste.txt"): case["text"]})
    assert {f.id: f.message for f in report.findings if f.status in BROKEN} == {}
    told = {f.id for f in report.findings if f.status is Status.INFO}
    asked = {f.subject for f in report.findings if f.status is Status.UNKNOWN}
    assert told <= set(case.get("info", []))
    assert asked <= set(case.get("asks", []))
    assert report.summary.exit_code == 3


def test_a_long_kernel_log(why: Why) -> None:
    lines = [f"[{n * 7.31:12.6f}] {said(KERNEL, n)}" for n in range(2_000)]
    report = why({"dmesg.txt": "\n".join(lines)})
    assert [f.id for f in report.findings if f.status is not Status.OK] == []


def test_a_long_log_of_a_server(why: Why) -> None:
    started = next(case.values[0] for case in CASES if "vLLM 0.8 V0" in str(case.id))
    lines = [said(SERVER, n) for n in range(300)]
    report = why({"vllm.log": started["text"] + "\n".join(lines)})  # type: ignore[index]
    assert [f.id for f in report.findings if f.status is not Status.OK] == []


def said(lines: tuple[str, ...], n: int) -> str:
    return lines[n % len(lines)].format(n=2_500 + n, core=n % 60)
