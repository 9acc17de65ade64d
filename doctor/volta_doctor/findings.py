"""What a check says: findings, their evidence and their remedy."""

from enum import Enum

import msgspec

HOST = "host"  # the subject of a finding about the machine as a whole


class Status(str, Enum):
    """The verdict of one check on one subject."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"


# Worst first. Not being able to tell outranks a warning, as it does in the exit code.
SEVERITY = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.INFO, Status.OK, Status.SKIP)


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen: where (a file, command or call), on which line (from 1), and its text."""

    source: str
    text: str
    line: int | None = None


class Remedy(msgspec.Struct, frozen=True):
    """What to do, and what doing it may cost.

    `risk` is none, restart, reboot, rebuild, reconfigure or hardware.
    """

    fix: str
    risk: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict.

    `title` is the claim that holds when the status is ok; `message` is what was found. `rank`
    counts from 1, worst first. `hides` lists the findings folded under this one, and
    `folded_under` is the root cause above this one.
    """

    id: str
    status: Status
    rank: int = 0
    subject: str = HOST
    title: str
    message: str
    evidence: list[Evidence] = []
    remedy: Remedy
    hides: list[str] = []
    folded_under: str | None = None
