"""Cards that were too hot."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule

_LOST = r"fallen off the bus|Xid \([^)]{5,24}\): 79|Xid 79|GPU is lost"
# A V100 halves its clock at 87 °C (nvidia-smi -q), newer cards a little above that.
_TOO_HOT_C = 87
_MOST_C = 130  # no sensor of a card reads more (ours)
_DEGREES = re.compile(r"(?<![\w.+-])(\d{2,3})\s?(?:°\s?)?C\b")
# Lines with limits, and those of other parts.
_NO_READING = re.compile(
    r"slowdown|shutdown|threshold|max(?:imum)? operating|target|limit|T\.?\s?limit|core \d|package"
    r"|cpu|nvme|composite|tctl|inlet|ambient|crit|\bhigh\b",
    re.IGNORECASE,
)
_OWN_LIMIT = r"GPU Slowdown Temp : (?P<limit>\d{2,3}) C"


@rule("temp-gpu")
def hot_before_it_was_lost(case: Case, row: Row) -> Iterator[Finding]:
    """A card that grew too hot and then left the bus has switched itself off."""
    lost = case.lines(_LOST, 2)
    if not lost:
        return
    limit = int((case.groups(_OWN_LIMIT) or {}).get("limit", _TOO_HOT_C))
    hot = [
        (degrees, seen)
        for match, seen in case.matching(_DEGREES)
        if limit <= (degrees := int(match[1])) <= _MOST_C and not _NO_READING.search(match.string)
    ]
    if hot:
        degrees, seen = max(hot, key=lambda pair: pair[0])
        text = f"A GPU was at {degrees} °C (it slows down at {limit} °C) when one left the bus."
        yield likely(
            row.fail(text, seen, *lost),
            "a card switches itself off when it is too hot, and then it is gone from the bus",
        )
