"""What the reader of checkpoints found wrong, as findings."""

from functools import lru_cache

from volta_doctor.catalog import Row
from volta_doctor.facts.model import Missing
from volta_doctor.findings import HOST, Evidence, Finding
from volta_doctor.preflight.subject import Subject
from volta_doctor.words import several
from volta_runtime.checkpoint.faults import Fault


def findings(subject: Subject, row: Row, looked: str = "") -> list[Finding]:
    """Return a finding for each fault of a row's id; ok, with what was looked at, without any.

    Raises Missing where it is not said what was looked at, and no header could be.
    """
    return faults(subject, row) or [row.ok(f"{looked or seen(subject)}.")]


def faults(subject: Subject, row: Row) -> list[Finding]:
    """Return a finding for each fault of a row's id, whose subject is the tensor, else the file."""
    return [_finding(subject, row, f) for f in subject.checkpoint.faults if f.check == row.id]


@lru_cache(maxsize=1)  # of tens of thousands of tensors, told by several checks
def seen(subject: Subject) -> str:
    """Say which headers there were to look at. Raises Missing where none could be read."""
    tensors = subject.checkpoint.contents.tensors
    if not tensors:
        raise Missing("No header of a file with weights could be read.")
    files = {info.file for info in tensors.values()}
    return f"{several(len(tensors), 'tensor')} in {several(len(files), 'file')}"


def _finding(subject: Subject, row: Row, fault: Fault) -> Finding:
    if fault.level == "unknown":
        return row.unknown(_sentence(fault.message), subject=_about(subject, fault))
    make = {"fail": row.fail, "warn": row.warn, "info": row.info}[fault.level]
    sides = [
        f"{side}: {text}"
        for side, text in (("expected", fault.expected), ("found", fault.found))
        if text
    ]
    evidence = [Evidence(str(fault.file), ", ".join(sides))] if sides else []
    return make(_sentence(fault.message), *evidence, subject=_about(subject, fault))


def _about(subject: Subject, fault: Fault) -> str:
    file = "" if fault.file == subject.checkpoint.path else fault.file.name
    return fault.tensor or file or HOST


def _sentence(text: str) -> str:
    """Begin it as one, unless it begins with a name."""
    first = text.partition(" ")[0]
    return f"{text[0].upper() if first.isalpha() else text[0]}{text[1:]}."
