"""What a check says: findings, their evidence and their remedy."""

from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

HOST = "host"  # the subject of a finding about the machine as a whole
MODEL = "model"  # and of one about a checkpoint as a whole


class Status(str, Enum):
    """The verdict of one check on one subject."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"


class Confidence(str, Enum):
    """How sure a diagnosis from a text is."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


# Worst first. Not being able to tell outranks a warning, as it does in the exit code.
SEVERITY = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.INFO, Status.OK, Status.SKIP)
PROBLEMS = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.INFO)


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen: where (a file, command or call), on which line (from 1), and its text."""

    source: str
    text: str
    line: int | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a remedy that `volta-doctor fix --apply` can take: a command, or a file.

    `run` is an argument vector; else `write` is the path of a file that gets `content` (the old
    one is kept beside it). `undo` is the argument vector that takes the step back, empty where
    the earlier state cannot come back; a file is put back, or removed, before its `undo` is run.
    Reloads and restarts have themselves as `undo`: at the end of several fixes they are done once,
    and when fixes are taken back they come last.
    """

    run: list[str] = []
    write: str = ""
    content: str = ""
    undo: list[str] = []


class Remedy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do, and what doing it may cost.

    `risk` is none, restart, reboot, rebuild, reconfigure or hardware. `steps` do what `fix` says
    on this very host; without any it is for a person.
    """

    fix: str
    risk: str
    steps: list[Step] = []


class Waived(msgspec.Struct, frozen=True, kw_only=True):
    """Why a problem is borne with, until the end of which day (ISO 8601), and who said so."""

    reason: str
    expires: str
    by: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict.

    `title` is the claim that holds when the status is ok; `message` is what was found. `area` is
    that of the check. `rank` counts from 1, worst first. `count` is how much of it there is
    (errors, pages, lines), where it can grow: a waiver ends when it has. `hides` lists the findings
    folded under this one, and `folded_under` is the root cause above this one. A `waived` one stays
    in the report and does not count for the exit code.

    A text gives a finding with a `confidence`, for the reason in `because`; `consequences` are the
    lines that merely follow from it, `missing` is the evidence to bring where the text does not
    decide, and `contradicts` the advice in it that is wrong.
    """

    id: str
    area: str
    status: Status
    rank: int = 0
    subject: str = HOST
    title: str
    message: str
    count: int | None = None
    evidence: list[Evidence] = []
    remedy: Remedy
    hides: list[str] = []
    folded_under: str | None = None
    waived: Waived | None = None
    confidence: Confidence | UnsetType = UNSET
    because: str | UnsetType = UNSET
    consequences: list[Evidence] | UnsetType = UNSET
    missing: list[str] | UnsetType = UNSET
    contradicts: list[str] | UnsetType = UNSET
