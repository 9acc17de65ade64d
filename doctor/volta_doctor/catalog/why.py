"""What texts tell: the tables in why/, read by `volta-doctor why`. README.md has their keys."""

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from volta_doctor.catalog import AREAS, Row, checks, load
from volta_doctor.catalog.model import model_checks
from volta_doctor.findings import Confidence

# Areas whose causes only a text or a checkpoint shows.
MORE_AREAS = ("checkpoint", "download", "numerics", "quant")
UNDETERMINED = Row(
    id="undetermined",
    area="stack",
    title="the evidence decides the cause",
    needs=[],
    rule={},
    hides=[],
    fix="Bring the evidence that is named.",
    risk="none",
    source="ours",
)
_TABLES = files(__package__) / "why"
_SYMPTOMS = "symptoms"

Risk = Literal["none", "restart", "reboot", "rebuild", "reconfigure", "hardware"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that some tool prints, and what it says of the host.

    `pattern` is in RE2's syntax, without regard to case; a blank in it stands for any blanks and
    for a broken line. `says` and `subject` may name its groups in braces.
    """

    pattern: str
    says: str
    level: Literal["fail", "warn", "info"] = "fail"
    confidence: Confidence = Confidence.CERTAIN
    because: str = ""
    when: list[str] = []
    unless: list[str] = []
    contradicts: str = ""
    subject: str = ""
    source: str
    examples: list[str]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a cause is recognised; what is no check has its title and its fix here."""

    id: str
    relies: str
    messages: list[Message] = []
    judged_when: list[str] = []
    upkeep: bool = False
    title: str = ""
    hides: list[str] = []
    fix: str = ""
    risk: Risk = "none"
    source: str = ""
    volta_note: str = ""
    gpu: Literal["", "nvidia", "volta"] = ""


class Symptom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that shows that something is wrong, and not what."""

    name: str
    patterns: list[str]
    when: list[str] = []
    means: str
    suspects: list[str] = []
    explained_by: list[str] = []
    bring: list[str]
    source: str
    examples: list[str]


@cache
def diagnoses() -> dict[str, Diagnosis]:
    """Return all diagnoses by id. Raises ValueError naming the file and its fault."""
    return {entry.id: entry for _, entry in _entries()}


@cache
def symptoms() -> dict[str, Symptom]:
    """Return all symptoms by name. Raises ValueError naming the file and its fault."""
    tables = [name for name in _names() if name.startswith(_SYMPTOMS)]
    found = [s for table in tables for s in load(f"why/{table}.yaml", list[Symptom])]
    _refuse_twice([s.name for s in found])
    return {s.name: s for s in found}


def rows() -> dict[str, Row]:
    """Return the rows of all that `why` can name: the checks, and what only texts show.

    The rule of a check of a checkpoint is of no use to it: a text tells no more than its message.
    Raises ValueError for a diagnosis that is neither.
    """
    found = {
        name: msgspec.structs.replace(row, needs=[], rule={})
        for name, row in model_checks().items()
    }
    for name, check in checks().items():
        of_model = found[name].hides if name in found else []
        hides = [*check.hides, *(other for other in of_model if other not in check.hides)]
        found[name] = msgspec.structs.replace(check, hides=hides)
    for area, entry in _entries():
        row = found.get(entry.id)
        if row:
            further = [other for other in entry.hides if other not in row.hides]
            found[entry.id] = msgspec.structs.replace(row, hides=[*row.hides, *further])
            continue
        if not (entry.title and entry.fix and entry.source):
            raise ValueError(f"why/{area}: {entry.id} is no check, so it needs title, fix, source")
        found[entry.id] = Row(
            id=entry.id,
            area=area,
            title=entry.title,
            needs=[],
            rule={},
            hides=entry.hides,
            fix=entry.fix,
            risk=entry.risk,
            source=entry.source,
            volta_note=entry.volta_note,
            gpu=entry.gpu,
        )
    return found | {UNDETERMINED.id: UNDETERMINED}


@cache
def _entries() -> list[tuple[str, Diagnosis]]:
    known = (*AREAS, *MORE_AREAS)
    found: list[tuple[str, Diagnosis]] = []
    for name in _names():
        area = name.split("-")[0]
        if area == _SYMPTOMS:
            continue
        if area not in known:
            raise ValueError(f"why/{name}.yaml: no area {area!r}; there are {', '.join(known)}")
        found += [(area, entry) for entry in load(f"why/{name}.yaml", list[Diagnosis])]
    _refuse_twice([entry.id for _, entry in found])
    return found


def _refuse_twice(names: list[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"catalog/why: given twice: {', '.join(twice)}")


def _names() -> list[str]:
    listed = (path.name for path in _TABLES.iterdir() if path.name.endswith(".yaml"))
    return sorted(name.removesuffix(".yaml") for name in listed)
