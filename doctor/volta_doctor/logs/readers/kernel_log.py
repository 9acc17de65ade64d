"""Lines of the kernel, from dmesg, journalctl or syslog, with whatever stands before them."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from volta_doctor.facts.kernel_log import KernelLogFacts, LogLine
from volta_doctor.facts.model import Facts
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Line, Text

_HINTS = (
    "NVRM", "fallen off", "SXid", "AER:", "PCIe Bus Error", "aer_", "oom-kill:", "killed process",
    "kill process", "blocked for more than", "key was rejected",
)  # fmt: skip
_KERNEL = re.compile("|".join(map(re.escape, _HINTS)), re.IGNORECASE)
_CONTINUED = re.compile(r"\s*NVRM:\s+(?!Xid|GPU|The NVIDIA)|\s{8,}\S")
_FIGURES = re.compile(r"[\da-f.:]+")  # what differs between lines of one kind
_MOST_OF_A_KIND = 500
_SECONDS = re.compile(r"\[\s*(\d+\.\d+)\]")
_DATES = (
    (re.compile(r"\w{3} \w{3}\s+\d{1,2} \d{2}:\d{2}:\d{2} \d{4}"), "%a %b %d %H:%M:%S %Y"),
    (re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}"), "%Y-%m-%dT%H:%M:%S"),
    (re.compile(r"\w{3}\s+\d{1,2} \d{2}:\d{2}:\d{2}"), "%b %d %H:%M:%S"),
)
JUDGES = (
    "xid-fatal", "xid-63", "xid-app", "xid-fold", "pcie-aer", "oom-kill", "hung-task", "inforom",
    "power-cable",
)  # fmt: skip


@reader(*_HINTS, after=6)
def kernel_log(text: Text) -> Iterator[Part]:
    """Yield the lines that tell of GPUs, memory and buses, with what goes on below them."""
    found: list[tuple[Line, LogLine]] = []
    first = None
    for line in () if text.is_source else text.lines:
        if _KERNEL.search(line.text):
            time = _time(line.text)
            first = time if first is None else first
            if found and _goes_on(found[-1][0], line):
                found[-1] = (line, _joined(found[-1][1], line))
                continue
            found.append((line, LogLine(max(0.0, (time or 0.0) - (first or 0.0)), line.body)))
        elif found and line.number == found[-1][0].number + 1 and _CONTINUED.match(line.text):
            found[-1] = (line, _joined(found[-1][1], line))
    found = _without_storms(found)
    if found:
        lines = [_marked(entry) for _, entry in found]
        facts = Facts(
            kernel_log=section(KernelLogFacts(source=text.name, lines=lines, excerpt=True))
        )
        seen = [
            Seen("kernel_log", entry.text, text.evidence(line))
            for (line, _), entry in zip(found, lines, strict=True)
        ]
        yield Part(facts, JUDGES, seen)


def _without_storms(found: list[tuple[Line, LogLine]]) -> list[tuple[Line, LogLine]]:
    """Return the first few hundred lines of each kind: more of them tell no more."""
    kinds: Counter[str] = Counter()
    kept = []
    for line, entry in found:
        kind = _FIGURES.sub("", entry.text)
        kinds[kind] += 1
        if kinds[kind] <= _MOST_OF_A_KIND:
            kept.append((line, entry))
    return kept


def _goes_on(last: Line, line: Line) -> bool:
    return line.number == last.number + 1 and bool(_CONTINUED.match(line.text))


def _joined(entry: LogLine, line: Line) -> LogLine:
    return LogLine(entry.time, f"{entry.text} {line.body}")


def _marked(entry: LogLine) -> LogLine:
    """Put back the driver's mark, which the prefixes of a line took away."""
    driver = entry.text.startswith(("Xid (", "GPU ", "The NVIDIA GPU"))
    return LogLine(entry.time, f"NVRM: {entry.text}" if driver else entry.text)


def _time(text: str) -> float | None:
    """Return seconds since boot, or since some day; None where a line has no time."""
    if match := _SECONDS.search(text):
        return float(match[1])
    for pattern, form in _DATES:
        if match := pattern.search(text):
            words = re.sub(r"\s+", " ", match[0])
            year = "" if "%Y" in form else "2000 "
            form = form if "%Y" in form else f"%Y {form}"
            try:
                return datetime.strptime(f"{year}{words}", form).timestamp()
            except ValueError:
                return None
    return None
