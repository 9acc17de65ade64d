"""Words for messages, and the numbers in words."""

import re
from collections.abc import Sequence

# All but tab and line feed; what turns the direction of writing or has no width: a name would read
# as another; and halves of surrogate pairs, which no encoding takes
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Take the control characters out, one for one.

    Names of processes and lines of logs are any user's, and a terminal obeys what it is shown.
    """
    return _CONTROLS.sub("?", text)


def one_line(text: str, most: int) -> str:
    """Return a text of a stranger's on one line; of a long one the middle is left out."""
    if len(text) > most:
        left_out = f" [{len(text) - most} characters] "
        text = f"{text[: most // 2]}{left_out}{text[-(most - most // 2) :]}"
    return printable(text.replace("\n", "?").replace("\t", "?"))


def several(number: int, noun: str) -> str:
    """Count things in a sentence: 1 pair, 2 pairs, 3 processes."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")
    return f"{number} {noun if number == 1 else plural}"


def gib(number: float) -> str:
    """Put bytes in GiB, fewer in their largest fitting unit: 15.8 GiB, 477 MiB, 8 bytes."""
    if number >= 2**30:
        return f"{number / 2**30:.1f} GiB"
    for unit, one in (("MiB", 2**20), ("KiB", 2**10)):
        if number >= one:
            return f"{number / one:.0f} {unit}"
    return several(round(number), "byte")


def duration(seconds: float) -> str:
    """Put a time in its largest fitting unit: 90 s, 5 min, 3 h, 2 days."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def few(items: Sequence[str], limit: int | None = 3, by: str = ", ") -> str:
    """List the items, or the first of them and how many more there are; never one more."""
    if limit is None or len(items) <= limit + 1:
        return by.join(items)
    return f"{by.join(items[:limit])}{by.rstrip(', ')} and {len(items) - limit} more"


def numbers(version: str) -> list[int]:
    """Return the numbers in a version, to compare it with another: 12.8.1 is [12, 8, 1]."""
    return [int(part) for part in re.findall(r"\d+", version)]
