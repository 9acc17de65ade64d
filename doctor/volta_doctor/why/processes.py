"""Processes as `ps` lists them, whatever its options.

The columns are known by its header or by its `-o`, else by their form.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.findings import Evidence
from volta_doctor.logs.text import Line, Text
from volta_doctor.why.case import Case
from volta_doctor.why.commands import command_of

_AUX = ("user", "pid", "pcpu", "pmem", "vsz", "rss", "tty", "stat", "start", "time", "command")
_EF = ("uid", "pid", "ppid", "c", "stime", "tty", "time", "command")
_NAMES = {"cmd": "command", "args": "command", "comm": "command", "s": "stat", "state": "stat"}
_PS = re.compile(r"\bps\s+(?P<options>-?\w[^|;&]*)")
_FORMAT = re.compile(r"-\w*o\s*([\w,:%=]+(?: -o\s*[\w,:%=]+)*)")
_HEADER = re.compile(r"^(?:[\w%]+\s+)*PID(?:\s+[\w%+]+)*\s+(?:CMD|COMMAND|ARGS)$")
# A row of `ps aux` without anything above it.
_ROW = re.compile(
    r"(?:^|\s)\S+\s+\d+\s+\d+\.\d\s+\d+\.\d\s+\d+\s+\d+\s+\S+\s+[DRSTIZ][\w<+]{0,4}\s+\S+\s+[\d:.]+\s+\S"
)
_ANY = re.compile(rf"{_PS.pattern}|PID|{_ROW.pattern}")
_STATE = re.compile(r"^[DIRSTtXZ][<NLsl+W]{0,4}$")


class Process(NamedTuple):
    """A row of ps; a column that it does not have is None."""

    pid: int | None
    ppid: int | None
    state: str | None
    command: str
    evidence: Evidence


@lru_cache(maxsize=1)
def processes(case: Case) -> list[Process]:
    """Return the processes that the texts list."""
    return list(_each(case)) if case.lines(_ANY, 1) else []


def _each(case: Case) -> Iterator[Process]:
    columns: tuple[str, ...] = ()
    source = ""
    for text, line in case.each_line():
        if text.name != source:
            source, columns = text.name, ()
        command = command_of(line)
        if command is not None:
            asked = _PS.search(command)
            columns = _columns(asked["options"]) if asked else ()
        elif "PID" in line.text and _HEADER.match(line.body):
            columns = tuple(map(_name, line.body.split()))
        else:
            of_line = columns or (_AUX if _ROW.search(line.text) else ())
            if of_line and (process := _row(text, line, of_line)):
                yield process


def _columns(options: str) -> tuple[str, ...]:
    """Return the columns that options of ps ask for."""
    if asked := _FORMAT.search(options):
        names = re.sub(r" -o\s*", ",", asked[1]).split(",")
        return tuple(_name(re.split("[:=]", name)[0]) for name in names if name)
    if "aux" in options.replace(" ", ""):
        return _AUX
    return _EF if re.match(r"-(?:ef|fe|e?f)\b", options) else ()


def _name(column: str) -> str:
    name = column.lower()
    return _NAMES.get(name, name)


def _row(text: Text, line: Line, columns: tuple[str, ...]) -> Process | None:
    if "command" not in columns or columns[-1] != "command":
        return None
    cells = line.body.split(None, len(columns) - 1)
    if len(cells) < len(columns):
        return None
    found = dict(zip(columns, cells, strict=True))
    state, pid, ppid = found.get("stat"), found.get("pid", ""), found.get("ppid", "")
    if not (pid.isdigit() or ppid.isdigit()) or (state and not _STATE.match(state)):
        return None
    return Process(
        int(pid) if pid.isdigit() else None,
        int(ppid) if ppid.isdigit() else None,
        state,
        found["command"],
        text.evidence(line),
    )
