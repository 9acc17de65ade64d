"""The answer of `why` as a report: the findings, and what was read."""

from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version

from msgspec import structs

from volta_doctor import report
from volta_doctor.facts.model import SCHEMA, Snapshot
from volta_doctor.findings import PROBLEMS, Finding
from volta_doctor.profile import detect
from volta_doctor.report import Report
from volta_doctor.why import read
from volta_doctor.why.diagnose import diagnose

NOTHING = "nothing in it shows a fault; that is no proof of health"


def of(paths: Sequence[str], now: datetime) -> Report:
    """Judge the files of a case. Raises SourceError."""
    files = read.read(paths)
    findings = diagnose(files.case, files.findings, whole_host=files.snapshot is not None)
    taken = Snapshot(
        schema=SCHEMA,
        tool=f"volta-doctor {version('volta-stack')}",
        taken=now.isoformat(timespec="seconds"),
        facts=files.case.facts,
    )
    profile = detect(files.snapshot.facts) if files.snapshot else files.case.profile
    made = report.build(files.snapshot or taken, profile, findings, files.notes)
    return made if files.snapshot else _of_text(made)


def _of_text(made: Report) -> Report:
    """A text that shows no fault proves no health, whatever else it tells."""
    if made.summary.fail or made.summary.unknown or made.summary.warn:
        return made
    summary = structs.replace(made.summary, verdict="could not tell", exit_code=3)
    return structs.replace(made, summary=summary, notes=[*made.notes, NOTHING])


def problems(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that name a fault, or that it could not be told."""
    return [finding for finding in findings if finding.status in PROBLEMS]
