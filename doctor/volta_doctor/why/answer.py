"""The answer of `why` as a report: the findings, and what was read."""

from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version

from msgspec import structs

from volta_doctor import report
from volta_doctor.facts.model import SCHEMA, Snapshot
from volta_doctor.profile import detect
from volta_doctor.report import Report
from volta_doctor.why import read
from volta_doctor.why.diagnose import diagnose

NOTHING = "nothing in it shows a fault; that is no proof of health"


def of(paths: Sequence[str], now: datetime) -> Report:
    """Judge the files of a case. Raises SourceError."""
    files = read.read(paths)
    host = detect(files.case.facts) if files.snapshot else None
    findings = diagnose(files.case, files.findings, host)
    taken = Snapshot(
        schema=SCHEMA,
        tool=f"volta-doctor {version('volta-stack')}",
        taken=now.isoformat(timespec="seconds"),
        facts=files.case.facts,
    )
    made = report.build(files.snapshot or taken, host or files.case.profile, findings, files.notes)
    return made if files.snapshot else _of_text(made)


def _of_text(made: Report) -> Report:
    """A text that shows no fault proves no health, whatever else it tells."""
    if made.summary.fail or made.summary.unknown or made.summary.warn:
        return made
    summary = structs.replace(made.summary, verdict="could not tell", exit_code=3)
    return structs.replace(made, summary=summary, notes=[*made.notes, NOTHING])
