"""Reads a source of any size into a bounded `Text`: all of it, else what is near a known word.

A huge log is searched as bytes for the literals of all patterns at once. A literal that was found
often enough is looked for no longer, but for the end of the log, which is kept whole.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from volta_doctor.logs.patterns import options
from volta_doctor.logs.sources import Source
from volta_doctor.logs.text import Line, Text, decode, number_lines, parse

WHOLE = 8 << 20  # bytes of a text that is looked at whole
_TAIL = 1 << 20
_BEFORE = 8  # lines of context
_OFTEN = 200  # places of one literal
_MOST_LINES = 60_000
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
        self._counts: Counter[str] = Counter()
        self._kept: dict[int, bytes] = {}
        self.last = 0  # the number of the last line

    def lines(self, head: list[bytes], rest: Iterator[bytes]) -> list[Line]:
        """Return the lines near a literal, and the end of the text."""
        tail: deque[tuple[int, bytes]] = deque()
        number, held = 1, 0
        regex = self._regex(self._words)
        for piece in _chain(head, rest):
            if self._sift(regex, piece, number):
                regex = self._regex([w for w in self._words if self._counts[w] < _OFTEN])
            tail.append((number, piece))
            held += len(piece)
            while len(tail) > 1 and held - len(tail[0][1]) > _TAIL:
                held -= len(tail.popleft()[1])
            number += piece.count(b"\n")
        self.last = number
        for first, piece in tail:
            for offset, line in enumerate(piece.split(b"\n")):
                self._kept.setdefault(first + offset, line)
        numbers = sorted(self._kept)
        return [line for n in numbers for line in number_lines([decode(self._kept[n])], n)]

    def _sift(self, regex: Any, piece: bytes, first: int) -> bool:
        """Keep what is near a literal; say whether one was now found often enough."""
        if regex is None or len(self._kept) > _MOST_LINES:
            return False
        at, number, full = 0, first, False
        while match := regex.search(piece, at):
            word = self._words[b" ".join(match.group().lower().split()).decode(errors="replace")]
            self._counts[word.text.lower()] += 1
            full = full or self._counts[word.text.lower()] == _OFTEN
            number += piece.count(b"\n", at, match.start())
            start = match.start()
            before = 0
            while start > 0 and before <= _BEFORE:
                start = piece.rfind(b"\n", 0, start)
                before += 1
            begin = start + 1 if start >= 0 else 0
            here = number - piece.count(b"\n", begin, match.start())
            at = match.start()
            for _ in range(word.after + 1):
                at = piece.find(b"\n", at) + 1
                if not at:
                    at = len(piece)
                    break
            for offset, line in enumerate(piece[begin:at].split(b"\n")):
                self._kept.setdefault(here + offset, line)
            number += piece.count(b"\n", match.start(), at)
        return full

    @staticmethod
    def _regex(words: Iterable[str]) -> Any:
        import re2

        ways = [re2.escape(word) for word in words]
        return re2.compile("|".join(ways).encode(), options(64 << 20)) if ways else None


def _chain(head: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while head:
        yield head.pop(0)
    yield from rest
