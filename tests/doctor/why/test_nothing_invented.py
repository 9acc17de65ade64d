"""A text that shows no fault gets no diagnosis."""

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from volta_doctor.findings import PROBLEMS
from volta_doctor.report import Report

Why = Callable[[Mapping[str, str | bytes]], Report]
HEALTHY = yaml.safe_load((Path(__file__).parents[2] / "data/doctor/why_healthy.yaml").read_text())


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case["name"])
def test_no_fault_is_found(case: dict[str, str], why: Why) -> None:
    report = why({"paste.txt": case["text"]})
    assert {f.id: f.message for f in report.findings if f.status in PROBLEMS} == {}
    assert report.summary.exit_code == 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n\n",
        random.Random(1).randbytes(1 << 20),
        b"\x00" * 4096,
        "\u0436\u0438\u0437\u043d\u044c ".encode() * 500,
    ],
    ids=["empty", "blank lines", "noise", "zeros", "another language"],
)
def test_no_text_no_fault(data: bytes, why: Why) -> None:
    report = why({"paste": data})
    assert [f.id for f in report.findings if f.status in PROBLEMS] == []
    assert report.summary.exit_code == 3


def test_the_verb_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("It was a bright cold day in April.\n" * 50)
    argv = [sys.executable, "-m", "volta_doctor", "why", "novel.txt"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "no proof of health" in done.stdout


UNKNOWN = [
    "vllm serve m\nTraceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'q'",
    "(EngineCore_DP0 pid=9) ERROR 09-26 10:00:00 [core.py:700] nvidia: quux of the frobnicator",
    "[rank0]: torch.frobnicate.FrobError: quux",
    "llama_frobnicate: error: quux is not a tensor",
    "docker run --gpus all x\nSegmentation fault (core dumped)",
    'time=2026-01-02T10:00:00Z level=ERROR source=sched.go:1 msg="ollama cannot quux"',
    "[TM][FATAL] quux.cc(34): Check failed: quux",
    '/src/quux.cu(12): error: identifier "quux" is undefined',
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_unknown_error_is_quoted(text: str, why: Why) -> None:
    (found,) = why({"paste.txt": text}).findings
    assert (found.id, found.subject) == ("undetermined", "unknown-error")
    assert "no rule knows" in found.message.lower()
    assert found.evidence[0].line == len(text.splitlines())
    assert found.missing
