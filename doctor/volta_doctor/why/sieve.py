"""Rules most lines out before a regex is tried: RE2 looks through a whole text at once."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from volta_doctor.logs.text import Joined, Line

# A lookaround, which RE2 does not know. It only narrows: without it more lines are left.
_LOOKAROUND = re.compile(r"\(\?<?[=!](?:[^()\\]|\\.|\((?:[^()\\]|\\.)*\))*\)")


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
    try:
        return re2.compile("(?m)" + _LOOKAROUND.sub("", regex.pattern), options)
    except re2.error:
        return None
