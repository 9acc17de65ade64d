"""A kernel log of any size, plain or compressed, through stdin: fast, and in little memory."""

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

MIB = 1 << 20
SIZE = 256 * MIB
MB_PER_S = 50
MOST_MEMORY = 200 * MIB
LINES = (
    "usb 1-1: new high-speed USB device number 4 using xhci_hcd",
    'audit: type=1400 audit(1700000000.123:45): apparmor="STATUS" operation="profile_load"',
    "br-abcdef: port 1(veth0) entered forwarding state",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.82.07",
)
XID = "NVRM: Xid (PCI:0000:1a:00): 31, pid=1234, name=python3, Ch 00000010, MMU Fault"
FALLEN = "NVRM: Xid (PCI:0000:1a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"

# The peak of a process counts that of its parent before it, so the parent must be small.
MEASURE = """
import json, resource, subprocess, sys
argv = [sys.executable, "-m", "volta_doctor", "why", "-", "--format", "json"]
done = subprocess.run(argv, stdout=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
report = json.loads(done.stdout)
print(json.dumps([report, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def block(every: int) -> bytes:
    """Make a megabyte of log in which each so many lines is an Xid."""
    lines: list[str] = []
    size = 0
    while size < MIB:
        number = len(lines)
        text = XID if number % every == 0 else LINES[number % len(LINES)]
        lines.append(f"[{number * 0.01:13.6f}] {text}\n")
        size += len(lines[-1])
    return "".join(lines).encode()


def why(source: IO[bytes]) -> tuple[dict[str, object], float, int]:
    """Run `why` on stdin; return its report, its CPU seconds and its peak memory in bytes."""
    done = subprocess.run([sys.executable, "-c", MEASURE], stdin=source, capture_output=True)
    report, seconds, memory = json.loads(done.stdout)
    return report, seconds, memory


@pytest.mark.parametrize("every", [1, 50, 1_000_000], ids=["a storm", "many", "quiet"])
def test_a_huge_log(every: int, tmp_path: Path) -> None:
    log, piece = tmp_path / "kern.log", block(every)
    with log.open("wb") as file:
        for _ in range(SIZE // len(piece)):
            file.write(piece)
        file.write(f"[1999999.000000] {FALLEN}\n".encode())
    with log.open("rb") as file:
        report, seconds, memory = why(file)
    assert report["findings"][0]["id"] == "xid-fatal"  # type: ignore[index]
    assert SIZE / 1e6 / seconds > MB_PER_S
    assert memory < MOST_MEMORY


def test_a_compressed_log_reads_the_same(tmp_path: Path) -> None:
    data = block(50) * 12 + f"[1999999.000000] {FALLEN}\n".encode()
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data, 1))
    found = []
    for name in ("plain", "packed"):
        with (tmp_path / name).open("rb") as file:
            found.append(why(file)[0]["findings"])
    assert found[0] == found[1]


def test_an_answer_to_a_short_text_comes_at_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"[1.0] {FALLEN}\n")
    why((tmp_path / "log").open("rb"))
    started = time.monotonic()
    _, seconds, _ = why((tmp_path / "log").open("rb"))
    assert seconds < 2, time.monotonic() - started
