"""Sound checkpoints, of the formats' own libraries and of published layouts: nothing fails."""

from collections.abc import Callable
from pathlib import Path

import field_checkpoints
import pytest

from volta_doctor.catalog.model import model_checks
from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.findings import Finding, Status
from volta_doctor.preflight import cards
from volta_doctor.preflight.judge import judge
from volta_doctor.preflight.look import look

MADE = Path(__file__).parents[2] / "data/checkpoints"
# What no engine runs on sm_70 is sound all the same.
NOT_FOR_VOLTA = {"ct-int8", "ct-int8-bytes", "modelopt-nvfp4-awq"}
FIELD: list[Callable[[Path], Path]] = [
    field_checkpoints.quasar,
    field_checkpoints.unsloth,
    field_checkpoints.radixark,
    field_checkpoints.nvidia_27b,
    field_checkpoints.nvidia_35b,
    field_checkpoints.flash_next,
    field_checkpoints.reexport,
]


def judged(path: Path, *without: str) -> list[Finding]:
    named = cards.of_flag("v100-sxm2-16gb", 1)
    subject = look(path, None, Flags(max_model_len=2048), named, Facts())
    return judge(subject, [row for row in model_checks().values() if row.area not in without])


def told(findings: list[Finding], *statuses: Status) -> dict[str, str]:
    return {f.id: f"{f.subject}: {f.message}" for f in findings if f.status in statuses}


ALL = sorted(
    {path.parent.name for glob in ("*/config.json", "*/*.gguf") for path in MADE.glob(glob)}
)


def test_there_are_as_many_as_formats_ask_for() -> None:
    assert len(ALL) >= 24


@pytest.mark.parametrize("name", ALL)
def test_what_a_library_wrote_has_no_fault(name: str) -> None:
    findings = judged(MADE / name)
    failed = told(findings, Status.FAIL)
    assert failed.keys() == ({"quant-volta"} if name in NOT_FOR_VOLTA else set()), failed
    assert not any("the check itself failed" in finding.message for finding in findings)


@pytest.mark.parametrize("make", FIELD, ids=lambda make: make.__name__)
def test_published_layouts_have_no_fault(make: Callable[[Path], Path], tmp_path: Path) -> None:
    # Their scales are holes in the files, and so of zeros.
    findings = judged(make(tmp_path / "model"), "scales")
    assert told(findings, Status.FAIL, Status.UNKNOWN) == {}
