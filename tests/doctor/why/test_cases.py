"""Pastes with the right answers: why/ has a table for each fault, why_corpus/ reports of all kinds.

Those of the corpus were written by hands that had not seen the rules. A case that is `open` says
why it is still answered wrongly.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from volta_doctor.catalog.why import rows
from volta_doctor.findings import PROBLEMS
from volta_doctor.report import Report

DATA = Path(__file__).parents[2] / "data/doctor"
# What calls for hands on the machine: blamed wrongly it costs the user a card.
HARDWARE = frozenset(
    "xid-fatal gpu-lost gpu-init-failed ecc-dbe-vol ecc-dbe-agg ecc-sbe retired-total"  # noqa: SIM905
    " retired-trend retired-full inforom pcie-width pcie-replay pcie-aer nvl-count nvl-crc"
    " nvl-replay nvl-recovery power-cable power-brake".split()
)
Why = Callable[[Mapping[str, str | bytes]], Report]


def cases() -> list[Any]:
    paths = [*sorted(DATA.glob("why/*.yaml")), *sorted(DATA.glob("why_corpus/*.yaml"))]
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}", marks=is_open(case))
        for path in paths
        for case in yaml.safe_load(path.read_text())
    ]


def is_open(case: dict[str, Any]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(reason=case["open"], strict=True)] if "open" in case else []


@pytest.mark.parametrize("case", cases())
def test_the_cause_leads(case: dict[str, Any], why: Why) -> None:
    report = why(case.get("files") or {"paste.txt": case["text"]})
    found = [f for f in report.findings if f.status in PROBLEMS]
    ids = list(dict.fromkeys(f.id for f in found))
    primary, also = set(case["primary"]), set(case.get("also", []))
    assert primary | also | set(case.get("never", [])) <= {*rows(), "none"}
    told = {f.id: f.message for f in found}
    assert (ids[0] if ids else "none") in primary, told
    assert not ids or ids[0] not in case.get("never", [])
    blamed = {f.id for f in found if f.status in ("fail", "warn")} & HARDWARE
    assert blamed <= primary | also, told
