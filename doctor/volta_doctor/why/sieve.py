"""Rules most lines out before a regex is tried: RE2 looks through a whole text at once."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from volta_doctor.logs.text import Joined, Line

# A lookaround, which RE2 does not know. It only narrows: without it more lines are left.
_LOOKAROUND = re.compile(r"\(\?<?[=!](?:[^()\\]|\\.|\((?:[^()\\]|\\.)*\))*\)")
# RE2's letters are those of ASCII.
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[(?:\\.|[^\]\\])+\]")
_WORD = r"\w\x{80}-\x{10FFFF}"


def lines(text: Joined, regex: re.Pattern[str]) -> Iterator[Line]:
    """Yield the lines that a regex may match; all, for one that RE2 cannot read."""
    wider = _wider(regex)
    if wider is None:
        yield from text.text.lines
        return
    at = 0
    while match := wider.search(text.data, at):
        yield text.line(match.start())
        at = text.data.find(b"\n", match.end()) + 1
        if not at:
            return


@cache
def _wider(regex: re.Pattern[str]) -> Any | None:
    """Compile what matches at least where the regex does; None where that is not possible."""
    import re2

    options = re2.Options()
    options.case_sensitive = not regex.flags & re.IGNORECASE
    options.never_nl = True  # a match lies within one line
    options.log_errors = False
    source = _LOOKAROUND.sub("", regex.pattern)
    if not regex.flags & re.ASCII:
        source = _ESCAPE_OR_CLASS.sub(_with_all_letters, source)
    try:
        return re2.compile(f"(?m){source}", options)
    except re2.error:
        return None


def _with_all_letters(match: re.Match[str]) -> str:
    found = match[0]
    if found.startswith("[") and not found.startswith("[^"):
        return found.replace(r"\w", _WORD)
    return f"[{_WORD}]" if found == r"\w" else found
