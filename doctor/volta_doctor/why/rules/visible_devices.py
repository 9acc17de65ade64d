"""Lists of devices that name a card which the host does not have."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.rules.driver import every_line

# CUDA_VISIBLE_DEVICES=4,5 in a shell, unit, compose file, os.environ["CUDA_VISIBLE_DEVICES"] = "4".
# Not the container's own variable: it chooses among the host's cards, which a container renumbers.
_LIST = re.compile(
    r"\bCUDA_VISIBLE_DEVICES\b['\"\]]*\s*[=:]\s*['\"]?(?P<list>\d{1,2}(?:\s*,\s*\d{1,2})*)(?![\w.-])"
)
_ROW = re.compile(r"(?:^|\s)GPU (\d{1,2}): .*\(UUID: ")
_ATTACHED = re.compile(r"Attached GPUs\s*:\s*(\d{1,2})\b")
_WHOLE = "visible-devices"  # is judged by a table that shows every card


@rule("visible-devices")
def not_there(case: Case, row: Row) -> Iterator[Finding]:
    """An index at or above the number of cards: CUDA stops reading the list there."""
    cards = _cards(case) if case.lines("CUDA_VISIBLE_DEVICES", 1) else None
    if cards is None:
        return
    count, shown = cards
    for line, evidence in every_line(case):
        match = _LIST.search(line)
        named = re.findall(r"\d+", match["list"]) if match else []
        beyond = [number for number in named if int(number) >= count]
        if beyond:
            there = f"GPUs 0 to {count - 1}" if count > 1 else "GPU 0 only"
            text = f"CUDA_VISIBLE_DEVICES names {', '.join(beyond)}, and the text shows {there}."
            finding = row.fail(text, evidence, *shown[:4])
            yield likely(finding, "the list of cards may be that of another host, or cut")
            return


def _cards(case: Case) -> tuple[int, list[Evidence]] | None:
    """Return how many cards the host has, where a list shows all of them from 0 on."""
    rows: dict[int, Evidence] = {}
    for line, evidence in every_line(case):
        if match := _ROW.search(line):
            rows.setdefault(int(match[1]), evidence)
        elif match := _ATTACHED.search(line):
            return int(match[1]), [evidence]
    if rows and sorted(rows) == list(range(len(rows))):
        return len(rows), list(rows.values())
    whole = any(_WHOLE in part.judges for part in case.parts)
    nvml = case.facts.nvml.data
    return (len(nvml.gpus), []) if whole and nvml and nvml.gpus else None
