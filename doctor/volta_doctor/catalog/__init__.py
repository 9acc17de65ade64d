"""The tables that the doctor and the playbooks read: checks/*.yaml, xid.yaml and compat.yaml."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal, TypeVar

import msgspec

from volta_doctor.catalog.compatibility import Compat
from volta_doctor.findings import HOST, Evidence, Finding, Remedy, Status, Step

T = TypeVar("T")

# The files of checks/, in the order of reports and documents.
AREAS = (
    "driver",
    "kernel",
    "memory",
    "xid",
    "pcie",
    "nvlink",
    "nccl",
    "thermal",
    "power",
    "mode",
    "process",
    "torch",
    "toolchain",
    "extension",
    "stack",
    "container",
    "systemd",
    "host",
    "flags",
    "attention",
)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check as the catalogue describes it; README.md beside this file tells what a key means.

    `area` is the name of the row's file. `needs`, `uses` and `blinds` name sections of a snapshot.

    The methods make its findings. `count` is the figure that a waiver is held against (errors,
    pages, lines): give it wherever the finding can get worse without changing its status.
    """

    id: str
    title: str
    needs: list[str]
    rule: dict[Literal["fail", "warn", "info", "ok"], str]
    hides: list[str]
    fix: str
    risk: Literal["none", "restart", "reboot", "rebuild", "reconfigure", "hardware"]
    source: str
    area: str = ""
    uses: list[str] = []
    blinds: list[str] = []
    volta_note: str = ""
    gpu: Literal["", "nvidia", "volta"] = ""
    active: bool = False

    def ok(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """The claim in the title holds."""
        return self._finding(Status.OK, message, evidence, subject)

    def info(
        self,
        message: str,
        *evidence: Evidence,
        subject: str = HOST,
        steps: Sequence[Step] = (),
        count: int | None = None,
    ) -> Finding:
        """Worth knowing; nothing need be done."""
        return self._finding(Status.INFO, message, evidence, subject, steps, count)

    def warn(
        self,
        message: str,
        *evidence: Evidence,
        subject: str = HOST,
        steps: Sequence[Step] = (),
        count: int | None = None,
    ) -> Finding:
        """It works, and will not stay so."""
        return self._finding(Status.WARN, message, evidence, subject, steps, count)

    def fail(
        self,
        message: str,
        *evidence: Evidence,
        subject: str = HOST,
        steps: Sequence[Step] = (),
        count: int | None = None,
    ) -> Finding:
        """The claim in the title does not hold."""
        return self._finding(Status.FAIL, message, evidence, subject, steps, count)

    def unknown(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """Could not tell; the message says why."""
        return self._finding(Status.UNKNOWN, message, evidence, subject)

    def skip(self, message: str, *evidence: Evidence, subject: str = HOST) -> Finding:
        """Does not apply to this host; the message says why."""
        return self._finding(Status.SKIP, message, evidence, subject)

    def _finding(
        self,
        status: Status,
        message: str,
        evidence: tuple[Evidence, ...],
        subject: str,
        steps: Sequence[Step] = (),
        count: int | None = None,
    ) -> Finding:
        return Finding(
            id=self.id,
            area=self.area,
            status=status,
            subject=subject,
            title=self.title,
            message=message,
            count=count,
            evidence=list(evidence),
            remedy=Remedy(self.fix, self.risk, list(steps)),
        )


class XidRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an Xid number means on Volta; xid.yaml tells what the kinds are."""

    xid: int
    kind: Literal["fatal", "suspect", "retired", "app", "power", "wear", "newer", "other"]
    meaning: str
    source: str


@cache
def checks() -> dict[str, Row]:
    """Return all rows by id, area by area. Raises ValueError naming the file and its fault."""
    rows = [
        msgspec.structs.replace(row, area=area)
        for area in AREAS
        for row in load(f"checks/{area}.yaml", list[Row])
    ]
    ids = [row.id for row in rows]
    if twice := sorted({check_id for check_id in ids if ids.count(check_id) > 1}):
        raise ValueError(f"catalog/checks: ids given twice: {', '.join(twice)}")
    return {row.id: row for row in rows}


def add(row: Row) -> None:
    """Put a site's row beside the catalogue's. Raises ValueError as validate() does."""
    validate(row)
    checks()[row.id] = row


def validate(row: Row) -> None:
    """Raise ValueError for an id that is taken or is no two words, and for unknown sections."""
    from volta_doctor.facts.model import SECTIONS

    if row.id in checks():
        raise ValueError(f"id {row.id} is taken: there is a check of that name already")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", row.id):
        raise ValueError(f"id {row.id!r}: a site's name and a word, as in acme-fans")
    for key in ("needs", "uses", "blinds"):
        if strange := [name for name in getattr(row, key) if name not in SECTIONS]:
            known = ", ".join(SECTIONS)
            raise ValueError(f"{key}: a snapshot has no section {strange[0]!r}; there are {known}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` for a name that is none of the known ones."""
    from difflib import get_close_matches

    like = get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(like)}?" if like else "; volta-doctor list shows all"


@cache
def xids() -> dict[int, XidRow]:
    """Return xid.yaml by number."""
    return {row.xid: row for row in load("xid.yaml", list[XidRow])}


@cache
def compat() -> Compat:
    """Return compat.yaml. Raises ValueError naming the field that is at fault."""
    return load("compat.yaml", Compat)


def load(name: str, kind: type[T]) -> T:
    """Read a table of this package. Raises ValueError naming the file and its fault."""
    import msgspec.yaml

    try:
        return msgspec.yaml.decode((files(__name__) / name).read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{name}: {error}") from error
