"""Searches a text of any size, piece by piece, and keeps a bounded number of its lines.

All words are looked for at once. Every kind of line is kept some times: a kind is a word and what
follows it, whatever the figures. A word that fills a log is then looked at apart, for kinds that
were not there before: the one line that matters may stand behind a million that do not.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from volta_doctor.logs.patterns import options

_TAIL = 1 << 18
_BEFORE = 8  # lines of context
_WIDEST = 1 << 15  # bytes of context on either side
_NARROW = 1 << 11
_OF_A_KIND = 24  # windows
_SHARE = 1 << 17  # bytes kept for a word; from then on a kind is kept once, and only its line
_OFTEN = 400  # finds of a word that fills a log
_MOST_KINDS = 256  # of a word; one that has more has nothing in particular behind it
_FULL = 12_000, 16 << 20  # lines, bytes; then each word has had its share
_MOST = 20_000, 32 << 20
_KIND = 28  # bytes behind a word: an Xid's number is among those behind NVRM
_FIGURES = re.compile(rb"[0-9a-f]{4,}")  # those that tell a process or an address, not an Xid


class Word(NamedTuple):
    """A literal, and how many lines after it belong to it."""

    text: str
    after: int


class _Known:
    """A word, and what was found of it."""

    def __init__(self, word: Word) -> None:
        self.literal = word.text.lower().encode()
        self.after = word.after
        self.finds = 0
        self.kept = 0  # bytes
        self.kinds: Counter[bytes] = Counter()
        self.with_kind = re.compile(re.escape(self.literal) + rb"[^\n]{0,%d}" % _KIND)


class Search:
    """The search for words in the pieces of a text, and the lines near them."""

    def __init__(self, words: Iterable[Word]) -> None:
        by_length = sorted(words, key=lambda word: word.after)
        self._words = {known.literal: known for known in map(_Known, by_length)}
        self._often: list[_Known] = []
        self._regex = self._compiled()
        self._kept: dict[tuple[int, int], bytes] = {}  # by number, and where in the text it begins
        self._bytes = 0
        self._end = b""
        self._taken = 0
        self._owed = 0  # lines of context that the next piece begins with
        self.last = 1  # the number of the last line

    def take(self, piece: bytes) -> None:
        """Search a piece of whole lines."""
        if self._owed:
            owed = _line_end(piece, 0, self._owed - 1, min(len(piece), _WIDEST))
            self._keep(self.last, self._taken, piece[:owed])
            self._owed = 0
        lowered = piece.lower()
        for known in list(self._often):
            self._look_apart(known, piece, lowered)
        if self._regex and self._look(piece, lowered):
            self._regex = self._compiled()
        self.last += piece.count(b"\n")
        self._taken += len(piece)
        self._end = (self._end + piece)[-_TAIL:]

    def end(self) -> list[tuple[int, bytes]]:
        """Return the lines that were kept, with their numbers."""
        if self._end.endswith(b"\n"):
            self.last -= 1
        tail = self._end.removesuffix(b"\n")
        start = tail.find(b"\n") + 1
        number = self.last - tail.count(b"\n", start)
        self._keep(number, self._taken - len(self._end) + start, tail[start:])
        return [(number, line) for (number, _), line in sorted(self._kept.items())]

    def _compiled(self) -> Any:
        import re2

        ways = [re2.escape(literal.decode()) for literal in self._words]
        return re2.compile("|".join(ways).encode(), options(64 << 20)) if ways else None

    def _look(self, piece: bytes, lowered: bytes) -> bool:
        """Look for all words that do not fill the log; say whether one does now."""
        at, counted, number, more = 0, 0, self.last, False
        while match := self._regex.search(lowered, at):
            known = self._words.get(match.group())
            at = match.end()
            if known is None:  # it was found to fill the log a moment ago
                continue
            known.finds += 1
            number += piece.count(b"\n", counted, match.start())
            counted = match.start()
            found = known.with_kind.match(lowered, match.start())
            if found and self._is_wanted(known, _FIGURES.sub(b"#", found.group())):
                at = max(at, self._keep_near(known, piece, match.start(), number))
            if known.finds >= _OFTEN:
                more = True
                del self._words[known.literal]
                self._often.append(known)
        return more

    def _look_apart(self, known: _Known, piece: bytes, lowered: bytes) -> None:
        """Look for kinds of lines with a word that fills the log."""
        found = list(set(known.with_kind.findall(lowered)))
        kinds = _FIGURES.sub(b"#", b"\n".join(found)).split(b"\n") if found else []
        for kind, text in dict(zip(kinds, found, strict=True)).items():
            if self._is_wanted(known, kind):
                at = lowered.find(text)
                self._keep_near(known, piece, at, self.last + piece.count(b"\n", 0, at))
            if len(known.kinds) > _MOST_KINDS:
                self._often.remove(known)
                break

    def _is_wanted(self, known: _Known, kind: bytes) -> bool:
        known.kinds[kind] += 1
        most = 1 if self._has_its_share(known) else _OF_A_KIND
        return known.kinds[kind] <= most and not self._is_beyond(_MOST)

    def _has_its_share(self, known: _Known) -> bool:
        return known.kept >= _SHARE or self._is_beyond(_FULL)

    def _is_beyond(self, limit: tuple[int, int]) -> bool:
        return len(self._kept) >= limit[0] or self._bytes >= limit[1]

    def _keep_near(self, known: _Known, piece: bytes, at: int, number: int) -> int:
        """Keep the lines near a word, only its own once it had its share; return where they end."""
        alone = self._has_its_share(known)
        lines_before, lines_after = (0, 0) if alone else (_BEFORE, known.after)
        widest = _NARROW if alone else _WIDEST
        start = _line_start(piece, at, lines_before, max(0, at - widest))
        end = _line_end(piece, at, lines_after, min(len(piece), at + widest))
        known.kept += end - start
        above = lines_before - piece.count(b"\n", 0, at)
        if start == 0 and above > 0:
            before = _line_start(self._end, len(self._end) - 1, above - 1, 0) if self._end else 0
            number_before = self.last - self._end.count(b"\n", before)
            self._keep(number_before, self._taken - len(self._end) + before, self._end[before:])
        if end == len(piece):
            self._owed = max(self._owed, lines_after + 1 - piece.count(b"\n", at, end))
        self._keep(number - piece.count(b"\n", start, at), self._taken + start, piece[start:end])
        return end

    def _keep(self, number: int, start: int, lines: bytes) -> None:
        for line in lines.removesuffix(b"\n").split(b"\n"):
            if (number, start) not in self._kept:
                self._kept[number, start] = line
                self._bytes += len(line)
            start += len(line) + 1
            number += 1


def _line_start(piece: bytes, at: int, lines: int, least: int) -> int:
    """Return where the line begins that is so many lines above, `least` if that is before it."""
    for _ in range(lines + 1):
        at = piece.rfind(b"\n", least, at)
        if at < 0:
            return least
    return at + 1


def _line_end(piece: bytes, at: int, lines: int, most: int) -> int:
    """Return where the line ends that is so many lines below, `most` if that is behind it."""
    for _ in range(lines + 1):
        at = piece.find(b"\n", at, most) + 1
        if not at:
            return most
    return at
