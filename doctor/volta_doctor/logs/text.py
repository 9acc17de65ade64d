"""A text as `why` sees it: numbered lines, rid of what terminals, loggers and browsers put in."""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from volta_doctor.findings import Evidence
from volta_doctor.logs.source_code import is_source

_MAX_LINE = 4_000  # characters; what is longer is data, a log of one line, or a progress bar
_LONG = re.compile(  # so much up to a blank; what has none is data, and its beginning is enough
    rf"(.{{1,{_MAX_LINE - 1}}}(?:\s|$))|(\S{{400}})\S{{{_MAX_LINE - 400}}}", re.DOTALL
)
_KEPT_TEXT = 400  # characters of a line that a report quotes
_TERMINAL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-B0]"
)
_INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000\x0b\x0c", " "),
        **dict.fromkeys("\u2018\u2019\u201a\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
        "\r": " ",
    }
)

# What a mail puts before each quoted line, and Docker Compose before those of a service.
_MARKS = (re.compile(r"^(?:> ?)+"), re.compile(r"^[\w.-]{2,40} +\| ?"))

# What stands before a message on each of its lines: marks of a quotation, times, hosts, tags of
# journald, Docker Compose, Ray and Kubernetes, worker names, levels, source positions.
_PREFIX = re.compile(
    r"""(?:
      [>|]\s+
    | \[\s*\d+\.\d+\]\s*(?:\[\s*[TC]?\d+\]\s*)?
    | \[?(?:\w{3}\s+)?\w{3}\s+\d{1,2}\s+\d{2}:\d{2}:\d{2}(?:\s+\d{4})?\]?\s+
    | \[?\d{4}[-/]\d{2}[-/]\d{2}[T\s]\d{2}:\d{2}:\d{2}\S*\s+
    | \d{2}-\d{2}\s+(?:\d{2}:\d{2}:\d{2}\S*\s+)?
    | \(\w[\w.-]*(?:\s+(?:pid|ip|rank)=\S+)*\)\s+
    | (?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)[\s:]+
    | \[\w[\w./-]*\.(?:py|cpp|cc|cu|h|cuh|go|rs):\d+\]\s*
    | \w[\w./-]*\.(?:py|cpp|cc|cu|go):\d+\]\s*
    | (?:stdout|stderr)\s+[FP]\s+
    | (?:[\w.-]+\s+)?[\w./@-]+\[\d+\]:\s+
    | [\w.-]+\s+kernel:\s+
    | (?:kernel|NVRM):\s*
    | [\w-]{2,40}\s+\|\s+
    )""",
    re.VERBOSE,
)
_PREFIXES = 8


class Line(NamedTuple):
    """One line: its number from 1 in its source, and its text."""

    number: int
    text: str

    @property
    def body(self) -> str:
        """The text without what loggers put before it."""
        start = 0
        for _ in range(_PREFIXES):
            match = _PREFIX.match(self.text, start)
            if not match:
                break
            start = match.end()
        return self.text[start:].strip() if start else self.text.strip()


class Text(NamedTuple):
    """One source: its name and its lines; `note` says what of it was not looked at.

    `data` is the text as it came, empty where lines were left out. No program has printed the
    messages in one that `is_source`.
    """

    name: str
    lines: list[Line]
    data: bytes = b""
    note: str = ""
    is_source: bool = False

    def evidence(self, line: Line) -> Evidence:
        """Quote a line."""
        return Evidence(self.name, " ".join(line.text.split())[:_KEPT_TEXT], line.number)

    def blocks(self) -> Iterator[list[Line]]:
        """Yield runs of lines between blank ones, and between those that were left out."""
        block: list[Line] = []
        for line in self.lines:
            gap = block and line.number - block[-1].number not in (0, 1)
            if gap or not line.text.strip():
                if block:
                    yield block
                block = []
            if line.text.strip():
                block.append(line)
        if block:
            yield block

    def joined(self) -> str:
        """Return all lines as one text."""
        return "\n".join(line.text for line in self.lines)


class Joined:
    """A text as bytes, and which line stands where in them."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self._starts: list[int] = []
        parts = [line.text.encode() for line in text.lines]
        length = 0
        for part in parts:
            self._starts.append(length)
            length += len(part) + 1
        self.data = b"\n".join(parts)

    def line(self, at: int) -> Line:
        """Return the line that holds a byte."""
        return self.text.lines[bisect_right(self._starts, at) - 1]


class Squeezed:
    """A text without any blanks and prefixes, in which a broken or badly spaced line is whole."""

    def __init__(self, text: Text) -> None:
        self._lines = text.lines
        parts: list[str] = []
        self._starts: list[int] = []
        length = 0
        for line in text.lines:
            squeezed = squeeze(line.body)
            self._starts.append(length)
            parts.append(squeezed)
            length += len(squeezed.encode())
        self.data = "".join(parts).encode()

    def lines(self, start: int, end: int) -> list[Line]:
        """Return the lines that hold the bytes from `start` to `end`."""
        first = bisect_right(self._starts, start) - 1
        last = bisect_left(self._starts, end) - 1
        return [line for line in self._lines[first : last + 1] if line.text.strip()]


def squeeze(text: str) -> str:
    """Return a text without blanks."""
    return "".join(text.split())


def clean(raw: str) -> str:
    """Return one line in plain characters, as the program printed it."""
    text = raw[:_MAX_LINE]
    if "\x1b" in text:
        text = _TERMINAL.sub("", text)
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
    text = text.translate(_PLAIN).replace('\\"', '"')
    if "&" in text and ";" in text:
        text = html.unescape(text)
    return text.rstrip()


def parse(name: str, data: bytes) -> Text:
    """Return all lines of a text that is held in memory, without a mark that all of them bear."""
    lines = number_lines(decode(data).split("\n"))
    written = [line.text for line in lines if line.text]
    for mark in _MARKS:
        if written and all(mark.match(text) for text in written):
            lines = [line._replace(text=mark.sub("", line.text)) for line in lines]
    source = is_source(line.text for line in lines)
    return Text(name, _without_ignored(lines), data=data, is_source=source)


def _without_ignored(lines: list[Line]) -> list[Line]:
    """Leave out the failures that Ansible was told to ignore: its next line says so."""
    mark = "...ignoring"
    ignored = {line.number - 1 for line in lines if mark in line.text and line.body == mark}
    return [line for line in lines if line.number not in ignored] if ignored else lines


def number_lines(raw: Iterable[str], first: int = 1) -> list[Line]:
    """Clean and number lines; the pieces of a very long one have its number."""
    return [
        Line(number, clean(piece))
        for number, line in enumerate(raw, first)
        for piece in (_pieces(line) if len(line) > _MAX_LINE else [line])
    ]


def _pieces(line: str) -> list[str]:
    return ["".join(piece) for piece in _LONG.findall(line)]


def decode(data: bytes) -> str:
    """Return the characters; a log may hold anything."""
    return data.decode("utf-8-sig", errors="replace")
