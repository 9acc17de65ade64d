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
    r"^(?:\([\w.-]+\) ?)?(?:\[?[\w.-]+@[\w.-]+[: ]?[~\w/.+-]*\]? ?[$#%] *|~? ?[$%\u276f] +|~? ?# )"
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
    r"[$#%\u276f] ?\S|\b(?:nvidia-smi|lspci|dkms|dpkg|apt|uname|ulimit|df|free|cat|env|printenv"
    r"|echo|lsmod|ls|ps|numactl|mokutil|journalctl|dmesg|systemctl)\b"
)
_MOST_LINES = 400  # of one command's output that belong to it


class Ran(NamedTuple):
    """A command line, where it stands, and the lines that it printed."""

    command: str
    evidence: Evidence
    output: list[tuple[str, Evidence]]


def commands(case: Case) -> list[Ran]:
    """Return the commands of all texts in order."""
    return _commands(case)


@lru_cache(maxsize=1)
def _commands(case: Case) -> list[Ran]:
    return list(_each(case))


def command_of(line: Line) -> str | None:
    """Return the command that a line shows, None for another line."""
    if not _LIKE_ONE.search(line.text):
        return None
    body = line.body
    if match := _PROMPT.match(body):
        return match["command"]
    return body if _BARE.match(body) else None


def _each(case: Case) -> Iterator[Ran]:
    for text in case.texts:
        ran: Ran | None = None
        for line in text.lines:
            command = command_of(line)
            if command is not None:
                if ran:
                    yield ran
                ran = Ran(command, text.evidence(line), [])
            elif ran and line.text.strip() and len(ran.output) < _MOST_LINES:
                ran.output.append((line.body, text.evidence(line)))
        if ran:
            yield ran
