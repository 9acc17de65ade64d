"""Which modules an entry of a config means, and which scheme each module gets."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from volta_runtime.checkpoint.quantization.names import plain, spellings
from volta_runtime.checkpoint.quantization.patterns import Patterns
from volta_runtime.checkpoint.scheme import Scheme

MOST = 128  # groups of targets; published checkpoints have up to three


@dataclass(frozen=True)
class Entry:
    """One name in a list of modules.

    kind: exact, that module alone; tree, it and all below it; part, all whose name has these parts
        anywhere; pattern, a regular expression from the name's start; class, all of that class.
    """

    kind: Literal["exact", "tree", "part", "pattern", "class"]
    text: str


def glob(text: str) -> Entry:
    """An entry of ModelOpt's lists: a module with what is below it, or a pattern of the shell."""
    if not re.search(r"[*?\[]", text):
        return Entry("tree", text)
    return Entry("pattern", f"{translated(text)}(?:\\..*)?$")


def part(text: str) -> Entry:
    """An entry of modules_to_not_convert: parts of a name, which some tools write with stars."""
    if not re.search(r"[*?\[]", text):
        return Entry("part", text)
    return Entry("pattern", f"(?:.*\\.)?{translated(text)}(?:\\..*)?$")


def translated(text: str) -> str:
    """A pattern of the shell as a regular expression, as RE2 takes it too."""
    return "".join(map(_translated, re.findall(r"\*+|\[!?[^\]]+\]|.", text, re.DOTALL)))


def _translated(piece: str) -> str:
    if piece.startswith("*"):
        return ".*"
    if piece == "?":
        return "."
    if len(piece) == 1:
        return re.escape(piece)
    inside = piece[1:-1]
    negated = "^" if inside.startswith("!") else ""
    return f"[{negated}{re.escape(inside.removeprefix('!')).replace(chr(92) + '-', '-')}]"


class Names:
    """A list of entries, compiled."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        by_kind: dict[str, list[str]] = {}
        for entry in entries:
            by_kind.setdefault(entry.kind, []).append(entry.text)
        self._exact = {plain(text) for text in by_kind.get("exact", ())}
        self._trees = {plain(text) for text in by_kind.get("tree", ())}
        self._parts = {f".{plain(text)}." for text in by_kind.get("part", ())}
        self._lengths = sorted({text.count(".") - 1 for text in self._parts})
        self._classes = {*by_kind.get("class", ())}
        self.patterns = Patterns(by_kind.get("pattern", []))

    def rank(self, names: Sequence[str], class_name: str) -> int | None:
        """0 for a name, 1 for a pattern, 2 for a class, None for no match; less is more exact."""
        if self._named(names):
            return 0
        if self.patterns.match(names):
            return 1
        return 2 if class_name in self._classes else None

    def _named(self, names: Sequence[str]) -> bool:
        if self._exact and not self._exact.isdisjoint(names):
            return True
        if not (self._trees or self._parts):
            return False
        for name in names:
            words = name.split(".")
            if self._trees and any(
                ".".join(words[:end]) in self._trees for end in range(1, len(words) + 1)
            ):
                return True
            for length in self._lengths:
                for start in range(len(words) - length):
                    if f".{'.'.join(words[start : start + length + 1])}." in self._parts:
                        return True
        return False


class Targets:
    """Schemes by target: a name goes before a pattern, a pattern before a class, the first of two.

    What is ignored has no scheme, and neither has what a group with the scheme None means.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[Entry], Scheme | None]] = (),
        ignore: Iterable[Entry] = (),
    ) -> None:
        self.groups = [(Names(entries), scheme) for entries, scheme in groups[:MOST]]
        self.ignored = Names(ignore)
        self.left_out = len(groups) - len(self.groups)

    def scheme_of(self, module: str, class_name: str) -> Scheme | None:
        """The scheme of a module of this class."""
        names = spellings(module)
        if self.ignored.rank(names, class_name) is not None:
            return None
        best: tuple[int, Scheme | None] = (3, None)
        for group, scheme in self.groups:
            rank = group.rank(names, class_name)
            if rank is not None and rank < best[0]:
                best = (rank, scheme)
        return best[1]

    def faults(self) -> list[tuple[str, str]]:
        """The patterns that could not be used so far, each with the reason."""
        lists = [self.ignored, *(group for group, _ in self.groups)]
        return [fault for names in lists for fault in names.patterns.faults]
