"""Patterns of the tables, compiled by RE2: matched in linear time, whatever the text.

In a pattern a blank stands for any run of blanks, also for none. Lines are matched as bytes.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from typing import Any, NamedTuple

_SPAN = 120  # bytes that `.*` may bridge in a text without line ends
_ANCHORS = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[bBAz]|[$]|(?<!\[)\^)")
_SHORTEST = 5  # bytes of a literal that is worth looking for


def available() -> str:
    """Return an empty text, or why patterns cannot be matched here."""
    try:
        import re2  # noqa: F401
    except ImportError:
        return (
            "why needs google-re2, and there is none for this Python: pip install google-re2, or"
            " run why on another machine (a text can be judged anywhere)"
        )
    return ""


class Pattern:
    """One pattern, in lines and in a text without blanks."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """Texts of which every match holds at least one. Raises ValueError without any."""
        return literals(self.source)

    @property
    def whole_lines(self) -> bool:
        """Whether it says where a line or a word ends, so that broken lines cannot match."""
        return bool(_ANCHORS.search(self.source))

    def lines(self, data: bytes) -> Iterator[tuple[dict[str, str], int]]:
        """Yield the first match of each line: its named groups, and where in `data` it begins."""
        at = 0
        while match := self._in_line.search(data, at):
            yield _groups(match), match.start()
            at = data.find(b"\n", match.end()) + 1
            if not at:
                break

    def squeezed(self, data: bytes) -> "tuple[dict[str, str], int, int] | None":
        """Return the groups of the first match in a squeezed text, and where it is."""
        match = self._in_squeezed.search(data)
        return (_groups(match), match.start(), match.end()) if match else None

    @cached_property
    def _in_line(self) -> Any:
        return _compile("(?m)" + re.sub(" +", r"[ \\t]*", self.source))

    @cached_property
    def _in_squeezed(self) -> Any:
        bounded = re.sub(r"(?<!\\)\.[*+]\??", f".{{0,{_SPAN}}}?", self.source)
        return _compile(bounded.replace(" ", ""))


def _compile(source: str) -> Any:
    import re2

    return re2.compile(source.encode(), options())


@cache
def options(max_mem: int = 8 << 20) -> Any:
    """Return RE2's options for all patterns: bytes, and no regard to case."""
    import re2

    chosen = re2.Options()
    chosen.case_sensitive = False
    chosen.encoding = re2.Options.Encoding.LATIN1
    chosen.max_mem = max_mem
    chosen.log_errors = False
    chosen.never_nl = True  # a match lies within one line
    return chosen


def _groups(match: Any) -> dict[str, str]:
    found = match.groupdict()
    return {
        str(name, "ascii"): (text or b"").decode(errors="replace").strip()
        for name, text in found.items()
    }


class Literals:
    """Finds in one pass which of many literals a text holds, each with what it belongs to."""

    def __init__(self, owners: Iterable[tuple[Iterable[str], object]]) -> None:
        import re2

        by_literal: dict[str, list[object]] = {}
        for texts, owner in owners:
            for text in texts:
                by_literal.setdefault(text.lower(), []).append(owner)
        self.literals = list(by_literal)
        self._owners = list(by_literal.values())
        self._set = re2.Set.SearchSet(options(64 << 20))
        for literal in self.literals:
            self._set.Add(re2.escape(literal).replace(r"\ ", r"[ \t]*").encode())
        self._set.Compile()

    def owners(self, data: bytes) -> Iterator[Any]:
        """Yield the owners of the literals in a line, each once."""
        seen: set[int] = set()
        for index in self._set.Match(data) or ():
            for owner in self._owners[index]:
                if id(owner) not in seen:
                    seen.add(id(owner))
                    yield owner


# ---- Literals that a pattern cannot match without.


_GROUP = re.compile(r"\((?:\?(?:P<\w+>|:))?")
_UNKNOWN = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[A-Za-z0-9]|[.^$]")  # which character it is
_REPEAT = re.compile(r"(?:[*+?]|\{(\d*),?\d*\})\??")


class _Choice(NamedTuple):
    """Ways of which one must be in a match; none where nothing is known of it."""

    texts: tuple[str, ...]


def _worth(choice: _Choice) -> int:
    return min(map(len, choice.texts), default=0)


def literals(pattern: str) -> tuple[str, ...]:
    """Return texts of which every match holds at least one. Raises ValueError without any."""
    best, end = _alternatives(pattern, 0)
    if end != len(pattern):
        raise ValueError(f"pattern {pattern!r}: a bracket is closed that was not opened")
    if _worth(best) < _SHORTEST:
        raise ValueError(
            f"pattern {pattern!r}: it can match without any literal text of {_SHORTEST} characters"
        )
    return best.texts


def _alternatives(pattern: str, start: int) -> tuple[_Choice, int]:
    """Read alternatives up to the closing bracket or the end."""
    found: list[_Choice] = []
    while True:
        choice, start = _sequence(pattern, start)
        found.append(choice)
        if start >= len(pattern) or pattern[start] == ")":
            break
        start += 1  # the bar
    if any(_worth(choice) == 0 for choice in found):
        return _Choice(()), start
    return _Choice(tuple(text for choice in found for text in choice.texts)), start


def _sequence(pattern: str, at: int) -> tuple[_Choice, int]:
    """Read what stands side by side, up to a bar, the closing bracket or the end."""
    best, run = _Choice(()), ""
    while at < len(pattern) and pattern[at] not in "|)":
        choice: _Choice | None = _Choice(())
        if group := _GROUP.match(pattern, at):
            choice, at = _alternatives(pattern, group.end())
            at += 1
        elif unknown := _UNKNOWN.match(pattern, at):
            at = unknown.end()
        else:
            at += 2 if pattern[at] == "\\" else 1
            choice = None
        char = pattern[at - 1]
        repeat = _REPEAT.match(pattern, at)
        if choice is None and not repeat:
            run += char
            continue
        best, run = max(best, _Choice((run.strip(" "),)), key=_worth), ""
        at = repeat.end() if repeat else at
        if not (repeat and _may_be_none(repeat)):
            best = max(best, choice or _Choice((char,)), key=_worth)
    return max(best, _Choice((run.strip(" "),)), key=_worth), at


def _may_be_none(repeat: re.Match[str]) -> bool:
    return repeat[0][0] in "*?" or (repeat[0][0] == "{" and not (repeat[1] or "0").strip("0"))
