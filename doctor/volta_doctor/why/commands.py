"""Commands that a text shows, and what each printed below it."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.findings import Evidence
from volta_doctor.logs.text import Line
from volta_doctor.why.case import Case

# What a shell puts before a command: `root@host:~# `, `[me@host dir]$ `, `(env) $ `.
_PROMPT = re.compile(
    r"^(?:\([\w.-]+\) ?)?(?:\[?[\w.-]+@[\w.-]+[: ]?[~\w/.+-]*\]? ?[$#%] *|~? ?[$%❯] +|~? ?# )"
    r"(?P<command>\S.*)$"
)
# Commands that are also known without a prompt, by a word that no sentence goes on with.
_BARE = re.compile(
    r"^(?:sudo )?(?:(?:timeout [\w.-]+ )?nvidia-smi(?: -|;| *$| *[|&>])|lspci(?: -| *\|)"
    r"|dkms status|dpkg -l|apt list|uname -|ulimit -|df -|free -|cat /(?:proc|etc|sys)/|env *\|"
    r"|printenv|echo \$|lsmod|ls -?\w* ?/dev/|ps (?:-|aux)|numactl -|mokutil --|journalctl "
    r"|dmesg\b|systemctl (?:show|cat|status) ).{0,200}$"
)
# What a line with one of these has: looked for first, for most lines of a log have none.
_LIKE_ONE = re.compile(
    r"[$#%❯] ?\S|\b(?:nvidia-smi|lspci|dkms|dpkg|apt|uname|ulimit|df|free|cat|env|printenv"
    r"|echo|lsmod|ls|ps|numactl|mokutil|journalctl|dmesg|systemctl)\b"
)
_NUMBER = re.compile(r"^\W{0,3}(\d{1,5})\W*$")
_BEHIND = re.compile(r"(?:#|=>|->|→|:|=)\s*(\d{1,5})\s*$")
_MOST_LINES = 400  # of one command's output that belong to it (ours)


class Ran(NamedTuple):
    """A command line, where it stands, and the lines that it printed."""

    command: str
    evidence: Evidence
    output: list[tuple[str, Evidence]]


class Count(NamedTuple):
    """A number that a command has printed, and where that stands."""

    number: int
    evidence: list[Evidence]


@lru_cache(maxsize=1)
def commands(case: Case) -> list[Ran]:
    """Return the commands of all texts in order."""
    return list(_each(case))


def counts(case: Case, command: re.Pattern[str]) -> Iterator[Count]:
    """Yield the numbers that commands of one form printed, below them or behind them."""
    for ran in commands(case):
        if not command.search(ran.command):
            continue
        if behind := _BEHIND.search(ran.command):
            yield Count(int(behind[1]), [ran.evidence])
        elif ran.output and (number := _NUMBER.match(ran.output[0][0])):
            yield Count(int(number[1]), [ran.evidence, ran.output[0][1]])


def command_of(line: Line) -> str | None:
    """Return the command that a line shows, None for another line."""
    if not _LIKE_ONE.search(line.text):
        return None
    body = line.body
    if match := _PROMPT.match(body):
        return match["command"]
    return body if _BARE.match(body) else None


def _each(case: Case) -> Iterator[Ran]:
    ran: Ran | None = None
    for text, line in case.each_line():
        if ran and ran.evidence.source != text.name:
            yield ran
            ran = None
        command = command_of(line)
        if command is not None:
            if ran:
                yield ran
            ran = Ran(command, text.evidence(line), [])
        elif ran and line.text.strip() and len(ran.output) < _MOST_LINES:
            ran.output.append((line.body, text.evidence(line)))
    if ran:
        yield ran
