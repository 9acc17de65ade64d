"""Whose memory it was that a card had no more of: torch names the share of the process itself."""

from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule

_MOST = 0.8  # of a card's memory: with so much of its own no neighbour is to blame
_SENTENCES = (
    r"total capaci?ty of (?P<total>[\d.]+) GiB .{0,400}this process has (?P<own>[\d.]+) GiB"
    r" memory in use",
    r"total capaci?ty of (?P<total>[\d.]+) GiB .{0,300}Of the allocated memory (?P<own>[\d.]+) GiB"
    r" is allocated by PyTorch",
    r"GPU \d+; (?P<total>[\d.]+) GiB total capacity; (?P<own>[\d.]+) GiB already allocated",
)


@rule("mem-fit")
def the_process_itself(case: Case, row: Row) -> Iterator[Finding]:
    """The process that failed holds nearly all of the card."""
    if "cuda-out-of-memory" not in case.symptoms:
        return
    for pattern in _SENTENCES:
        groups = case.groups(pattern)
        if not groups:
            continue
        total, own = float(groups["total"]), float(groups["own"])
        if own >= _MOST * total:
            finding = row.fail(
                f"The server itself holds {own:g} of {total:g} GiB and needs more.",
                *case.lines(pattern, 2),
            )
            yield likely(finding, "it is the only large holder that the text names")
