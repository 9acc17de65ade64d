"""Reads a source of any size into a bounded `Text`: all of it, else what is near a known word.

A huge log is searched as bytes for the literals of all patterns at once. A literal that was found
often enough is looked for no longer, but for the end of the log, which is kept whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from volta_doctor.logs.patterns import options
from volta_doctor.logs.sources import Source
from volta_doctor.logs.text import Line, Text, decode, number_lines, parse

WHOLE = 2 << 20  # bytes of a text that is looked at whole
_TAIL = 1 << 18
_BEFORE = 8  # lines of context
_LINES_OF_A_WORD = 800
_MOST_LINES = 12_000
_START = 1 << 16
_STRANGE = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x07\x1b") + b"\x7f"


class Word(NamedTuple):
    """A literal, and how many lines after it belong to it."""

    text: str
    after: int


def read(path: str, words: Iterable[Word]) -> Text:
    """Read a source. Raises SourceError."""
    source = Source(path)
    rest = iter(source)
    head: list[bytes] = []
    size = 0
    while size <= WHOLE and (piece := next(rest, b"")):
        head.append(piece)
        size += len(piece)
    if _is_binary(b"".join(head[:1])):
        return Text(source.name, [], note=f"{source.name}: this is no text")
    if size <= WHOLE:
        return parse(source.name, b"".join(head))._replace(note=_cut_short(source))
    search = _Search(list(words))
    lines = search.lines(head, rest)
    note = (
        f"{source.name}: of {search.last} lines {len(lines)} were looked at: those near a word"
        " that a rule knows, and the last ones"
    )
    return Text(source.name, lines, note="; ".join(filter(None, [note, _cut_short(source)])))


def _cut_short(source: Source) -> str:
    return f"{source.problem}: what could be read was judged" if source.problem else ""


def _is_binary(data: bytes) -> bool:
    """Say whether it is no text: one byte in fifty is a control character that no log has."""
    start = data[:_START]
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16
        return False
    return (len(start) - len(start.translate(None, _STRANGE))) * 50 > len(start)


class _Search:
    """The search for literals in pieces of a text, and the lines that it keeps."""

    def __init__(self, words: list[Word]) -> None:
        self._words = {word.text.lower(): word for word in words}
        self._spent: Counter[str] = Counter()  # lines that were kept for a word
        self._kept: dict[int, bytes] = {}
        self.last = 0  # the number of the last line

    def lines(self, head: list[bytes], rest: Iterator[bytes]) -> list[Line]:
        """Return the lines near a literal, and the end of the text."""
        number, end = 1, b""
        regex = self._regex(self._words)
        for piece in chain(_emptied(head), rest):
            if regex and self._sift(regex, piece, number):
                regex = self._regex([w for w in self._words if self._spent[w] < _LINES_OF_A_WORD])
            number += piece.count(b"\n")
            end = (end + piece)[-_TAIL:]
        self.last = number
        tail = end[end.find(b"\n") + 1 :]
        self._keep(number - tail.count(b"\n"), tail)
        return [
            line for n in sorted(self._kept) for line in number_lines([decode(self._kept[n])], n)
        ]

    def _sift(self, regex: Any, piece: bytes, number: int) -> bool:
        """Keep what is near a literal; say whether enough was kept for one."""
        at, enough = 0, False
        while len(self._kept) < _MOST_LINES and (match := regex.search(piece, at)):
            word = self._words[match.group().lower().decode(errors="replace")]
            here = match.start()
            number += piece.count(b"\n", at, here)
            start = _line_start(piece, here, _BEFORE)
            before = piece.count(b"\n", start, here)
            at = _line_end(piece, here, word.after)
            self._keep(number - before, piece[start:at])
            number += piece.count(b"\n", here, at)
            spent = self._spent[word.text.lower()]
            self._spent[word.text.lower()] += before + word.after + 1
            enough = enough or spent < _LINES_OF_A_WORD <= self._spent[word.text.lower()]
        return enough

    def _keep(self, number: int, lines: bytes) -> None:
        for offset, line in enumerate(lines.split(b"\n")):
            self._kept.setdefault(number + offset, line)

    @staticmethod
    def _regex(words: Iterable[str]) -> Any:
        import re2

        ways = [re2.escape(word) for word in words]
        return re2.compile("|".join(ways).encode(), options(64 << 20)) if ways else None


def _line_start(piece: bytes, at: int, lines: int) -> int:
    """Return where the line begins that is so many lines above."""
    for _ in range(lines + 1):
        at = piece.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1


def _line_end(piece: bytes, at: int, lines: int) -> int:
    """Return where the line ends that is so many lines below."""
    for _ in range(lines + 1):
        at = piece.find(b"\n", at) + 1
        if not at:
            return len(piece)
    return at


def _emptied(pieces: list[bytes]) -> Iterator[bytes]:
    while pieces:
        yield pieces.pop(0)
