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


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_blamed(case: dict[str, Any], why: Why) -> None:
    """`info` names the facts that it may tell, `asks` what it may ask for."""
    report = why({case.get("file", "paste.txt"): case["text"]})
    assert {f.id: f.message for f in report.findings if f.status in BROKEN} == {}
    told = {f.id for f in report.findings if f.status is Status.INFO}
    asked = {f.subject for f in report.findings if f.status is Status.UNKNOWN}
    assert (told, asked) == (set(case.get("info", [])), set(case.get("asks", [])))
    assert report.summary.exit_code == 3
