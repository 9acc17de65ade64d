"""What `volta-doctor arch` says: its report, which schema.json beside this file describes."""

from typing import Literal

import msgspec

from volta_doctor.arch.model import CodeFile, Target
from volta_doctor.arch.rules import Card, Status
from volta_doctor.findings import Finding

SCHEMA = 1

Gate = Literal["has it", "lacks it", "not known"]
Outcome = Literal["runs", "runs after JIT", "cannot run", "not known", "no device code"]


class JudgedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file: whether the card runs its device code, why, and the line that builds it anew.

    `card` names the card that does worst where there are several kinds. `unused` says why it
    does not count where other files do: the card need not run it. `lacks` are the architectures of
    --require that its machine code is not for.
    """

    file: CodeFile
    verdict: Status
    reason: str
    card: str = ""
    rebuild: str = ""
    unused: str = ""
    lacks: list[str] = []


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """The first edge that breaks, and the smallest change that mends it.

    `check` is the id of the finding that says so, `found` its message. `change` is a sentence,
    `commands` are lines for a shell; `then` is what else has to change, empty where nothing has.
    """

    edge: str
    check: str
    found: str
    change: str
    commands: list[str] = []
    then: list[str] = []


class TargetReport(msgspec.Struct, frozen=True, kw_only=True):
    """One target: the verdict on the whole, the first edge that breaks, and each file.

    `required` says whether it has what --require asks for, of which alone it then is judged.
    `findings` are those of the doctor's checks that bear on it and are not ok. `unread` says what
    was not looked at.
    """

    target: str
    kind: Target
    verdict: Outcome
    required: Gate | None = None
    first_break: Break | None = None
    findings: list[Finding] = []
    files: list[JudgedFile]
    looked_at: int
    unread: list[str] = []


class ArchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All targets, for which cards and which driver (None: any that drives them).

    `require` are the architectures of --require, empty without it; then `exit_code` is the gate's.
    """

    schema: int
    tool: str
    cards: list[Card]
    driver: str | None
    require: list[str]
    exit_code: int
    targets: list[TargetReport]
