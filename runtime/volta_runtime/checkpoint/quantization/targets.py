"""Which modules an entry of a config means, and which scheme each module gets."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from volta_runtime.checkpoint.quantization.names import Spellings, plain, spellings
from volta_runtime.checkpoint.quantization.patterns import Patterns
from volta_runtime.checkpoint.scheme import Scheme

MOST = 128  # groups of targets; published checkpoints have up to three


@dataclass(frozen=True)
class Entry:
    """One name in a list of modules.

    kind: exact, that module alone; tree, it and all below it; part, all whose name has these parts
        anywhere; pattern, a regular expression from the name's start; class, all of that class.
    written: how a pattern stands in the config, where that is not its text.
    """

    kind: Literal["exact", "tree", "part", "pattern", "class"]
    text: str
    written: str = ""


def glob(text: str) -> Entry:
    """An entry of ModelOpt's lists: a module with what is below it, or a pattern of the shell."""
    if not re.search(r"[*?\[]", text):
        return Entry("tree", text)
    return Entry("pattern", f"{translated(text)}(?:\\..*)?$", text)


def part(text: str) -> Entry:
    """An entry of modules_to_not_convert: parts of a name, which some tools write with stars."""
    if not re.search(r"[*?\[]", text):
        return Entry("part", text)
    return Entry("pattern", f"(?:.*\\.)?{translated(text)}(?:\\..*)?$", text)


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
    """Lists of entries, compiled: which of them a module is on."""

    def __init__(self, lists: Sequence[Iterable[Entry]]) -> None:
        self._exact: dict[str, int] = {}
        self._trees: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self._classes: dict[str, int] = {}
        self.patterns: list[tuple[int, Patterns]] = []
        for number, entries in enumerate(lists):
            patterns: dict[str, str] = {}
            for entry in entries:
                if entry.kind == "pattern":
                    patterns.setdefault(entry.text, entry.written or entry.text)
                elif entry.kind == "class":
                    self._classes.setdefault(entry.text, number)
                else:
                    by_name = {"exact": self._exact, "tree": self._trees, "part": self._parts}
                    by_name[entry.kind].setdefault(plain(entry.text), number)
            if patterns:
                self.patterns.append((number, Patterns(patterns)))
        self._lengths = sorted({text.count(".") + 1 for text in self._parts})

    def find(self, spelled: Spellings, class_name: str) -> int | None:
        """The number of the list: by name before by pattern before by class, the first of two."""
        for name in (*spelled.names, spelled.whole):
            if (found := self._named(name)) is not None:
                return found
        for number, patterns in self.patterns:
            if patterns.match(spelled):
                return number
        return self._classes.get(class_name)

    def _named(self, name: str) -> int | None:
        found = self._exact.get(name)
        above = name if self._trees else ""
        while above and found is None:
            found = self._trees.get(above)
            above = above.rpartition(".")[0]
        words = name.split(".") if self._parts else []
        for length in self._lengths if found is None else ():
            for start in range(len(words) - length + 1):
                found = self._parts.get(".".join(words[start : start + length]))
                if found is not None:
                    return found
        return found


class Targets:
    """Schemes by target, of which the more exact one counts; what is ignored has none.

    Neither has a module that a group with the scheme None means.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[Entry], Scheme | None]] = (),
        ignore: Sequence[Entry] = (),
    ) -> None:
        self.left_out = max(len(groups) - MOST, 0)
        self._schemes = [scheme for _, scheme in groups[:MOST]]
        self._targets = Names([entries for entries, _ in groups[:MOST]])
        self._ignored = Names([ignore])

    def scheme_of(self, module: str, class_name: str) -> Scheme | None:
        """The scheme of a module of this class."""
        spelled = spellings(module)
        if self._ignored.find(spelled, class_name) is not None:
            return None
        found = self._targets.find(spelled, class_name)
        return None if found is None else self._schemes[found]

    def faults(self) -> list[tuple[str, str]]:
        """The patterns that could not be used so far, each with the reason."""
        lists = (*self._ignored.patterns, *self._targets.patterns)
        return [fault for _, patterns in lists for fault in patterns.faults]
