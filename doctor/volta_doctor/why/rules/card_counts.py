"""Cards that the bus shows and the driver does not list: in listings, and counted by commands."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.commands import Count, counts
from volta_doctor.why.lspci import cards
from volta_doctor.why.rules import likely, rule
from volta_doctor.words import several

_LISTED = re.compile(r"(?:^|\s)GPU (\d{1,2}): .*\(UUID: ")
_ATTACHED = re.compile(r"Attached GPUs\s*:\s*(\d{1,2})\b")
_GUEST = "vfio-pci|pci-stub"  # cards that are kept for virtual machines
# lspci | grep -c 'Tesla V100'; nvidia-smi -L | wc -l
_BUS_COUNT = re.compile(r"\blspci\b.*\|.*(?:grep .*-\w*c|\bwc\b)", re.IGNORECASE)
_NODE_COUNT = re.compile(r"\bls\b.*/dev/nvidia\[0-9\].*\|.*\bwc\b")
_SMI_COUNT = re.compile(
    r"\bnvidia-smi (?:-L|--list-gpus|--query-gpu=\S+ .*noheader\S*)\s*(?:2>\S+ ?)?\|"
    r".*(?:wc|grep.*-c)"
)
_OURS = re.compile(r"nvidia|V100|10de|tesla|3D controller", re.IGNORECASE)


class Listed(NamedTuple):
    """The cards that nvidia-smi has: how many, the lines, and whether none can be left out."""

    number: int
    evidence: list[Evidence]
    is_whole: bool


@rule("gpu-count")
def not_all_listed(case: Case, row: Row) -> Iterator[Finding]:
    """More cards on the bus than the driver lists, where the text shows both."""
    by_driver = listed(case) or next(counts(case, _SMI_COUNT), None)
    bus = _on_bus(case) if by_driver else None
    if not bus or not by_driver or case.lines(_GUEST, 1):
        return
    where, on_bus = bus
    if by_driver.number >= on_bus.number or (by_driver.number == 0 and case.found("driver-loaded")):
        return
    shown = several(on_bus.number, "NVIDIA card")
    message = f"{where} shows {shown}, and the driver lists {by_driver.number}."
    finding = row.fail(message, *on_bus.evidence[:4], *by_driver.evidence[:3])
    yield likely(finding, "the text shows both lists, and either may have been cut")


def _on_bus(case: Case) -> tuple[str, Count] | None:
    shown = {card.bus: card.evidence[0] for card in reversed(cards(case))}
    if shown:
        return "The bus", Count(len(shown), [*reversed(shown.values())])
    for count in counts(case, _BUS_COUNT):
        if _OURS.search(count.evidence[0].text):
            return "The bus", count
    nodes = next(counts(case, _NODE_COUNT), None)
    return ("/dev", nodes) if nodes else None


def listed(case: Case) -> Listed | None:
    """Return the cards that nvidia-smi lists; None where the text does not show it."""
    for match, evidence in case.matching(_ATTACHED):
        return Listed(int(match[1]), [evidence], True)
    rows: dict[int, Evidence] = {}
    for match, evidence in case.matching(_LISTED):
        rows.setdefault(int(match[1]), evidence)
    if not rows:
        return None
    return Listed(len(rows), [*rows.values()], sorted(rows) == list(range(len(rows))))
