"""Lists of devices that name a card which the host does not have."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.rules.card_counts import listed

# CUDA_VISIBLE_DEVICES=4,5 in a shell, unit, compose file, os.environ["CUDA_VISIBLE_DEVICES"] = "4".
# Not the container's own variable: it chooses among the host's cards, which a container renumbers.
_LIST = re.compile(
    r"\bCUDA_VISIBLE_DEVICES\b['\"\]]*\s*[=:]\s*['\"]?(?P<list>\d{1,2}(?:\s*,\s*\d{1,2})*)(?![\w.-])"
)
_WHOLE = "visible-devices"  # is judged by a table that shows every card


@rule("visible-devices")
def not_there(case: Case, row: Row) -> Iterator[Finding]:
    """An index at or above the number of cards: CUDA stops reading the list there."""
    for match, evidence in case.matching(_LIST, sources=True):
        count, shown = _cards(case)
        beyond = [number for number in re.findall(r"\d+", match["list"]) if int(number) >= count]
        if count and beyond:
            there = f"GPUs 0 to {count - 1}" if count > 1 else "GPU 0 only"
            text = f"CUDA_VISIBLE_DEVICES names {', '.join(beyond)}, and the text shows {there}."
            finding = row.fail(text, evidence, *shown[:4])
            yield likely(finding, "the list of cards may be that of another host, or cut")
            return


def _cards(case: Case) -> tuple[int, list[Evidence]]:
    """Return how many cards the host has, 0 where no list shows all of them from 0 on."""
    if (found := listed(case)) and found.is_whole:
        return found.number, found.evidence
    whole = any(_WHOLE in part.judges for part in case.parts)
    nvml = case.facts.nvml.data
    return (len(nvml.gpus) if whole and nvml else 0), []
