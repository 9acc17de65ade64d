"""Cards that the bus shows and the driver does not list: in listings, and counted by commands."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.commands import commands
from volta_doctor.why.rules import likely, rule
from volta_doctor.words import several

_DEVICE = re.compile(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ", re.IGNORECASE)
_CARD = re.compile(r"(?:3D|VGA compatible) controller.*NVIDIA", re.IGNORECASE)
_LISTED = re.compile(r"(?:^|\s)GPU (\d{1,2}): .*\(UUID: ")
_ATTACHED = r"Attached GPUs : (?P<count>\d{1,2})"
_GUEST = "vfio-pci|pci-stub"  # cards that are kept for virtual machines
# lspci | grep -c 'Tesla V100'; nvidia-smi -L | wc -l
_BUS_COUNT = re.compile(r"\blspci\b.*\|.*(?:grep .*-\w*c|\bwc\b)", re.IGNORECASE)
_NODE_COUNT = re.compile(r"\bls\b.*/dev/nvidia\[0-9\].*\|.*\bwc\b")
_SMI_COUNT = re.compile(
    r"\bnvidia-smi (?:-L|--list-gpus|--query-gpu=\S+ .*noheader\S*)\s*(?:2>\S+ ?)?\|"
    r".*(?:wc|grep.*-c)"
)
_OURS = re.compile(r"nvidia|V100|10de|tesla|3D controller", re.IGNORECASE)
_NUMBER = re.compile(r"^\W{0,3}(\d{1,2})\W*$")
_BEHIND = re.compile(r"(?:#|=>|->|\u2192|:|=)\s*(\d{1,2})\s*$")  # a number behind the command


class Count(NamedTuple):
    """How many cards somebody sees, where that stands, and who sees them."""

    cards: int
    evidence: list[Evidence]
    where: str = "The bus"


@rule("gpu-count")
def not_all_listed(case: Case, row: Row) -> Iterator[Finding]:
    """More cards on the bus than the driver lists, where the text shows both."""
    on_bus, listed = _on_bus(case), _listed(case)
    if not on_bus or not listed or listed.cards >= on_bus.cards or case.lines(_GUEST, 1):
        return
    if listed.cards == 0 and case.found("driver-loaded"):
        return
    shown = several(on_bus.cards, "NVIDIA card")
    message = f"{on_bus.where} shows {shown}, and the driver lists {listed.cards}."
    finding = row.fail(message, *on_bus.evidence[:4], *listed.evidence[:3])
    yield likely(finding, "the text shows both lists, and either may have been cut")


def _on_bus(case: Case) -> Count | None:
    cards: dict[str, Evidence] = {}
    for text in case.texts if case.lines("NVIDIA", 1) else ():
        for line in text.lines:
            if _CARD.search(line.body) and _DEVICE.match(line.body):
                cards.setdefault(bus_id(line.body.split()[0]), text.evidence(line))
    if cards:
        return Count(len(cards), list(cards.values()))
    counted = next((found for found in _counted(case, _BUS_COUNT) if _of_cards(found)), None)
    nodes = next(_counted(case, _NODE_COUNT), None)
    return counted or (nodes and nodes._replace(where="/dev"))


def _of_cards(found: Count) -> bool:
    return bool(_OURS.search(found.evidence[0].text))


def _listed(case: Case) -> Count | None:
    attached = case.groups(_ATTACHED)
    if attached:
        return Count(int(attached["count"]), case.lines(_ATTACHED, 1))
    cards: dict[str, Evidence] = {}
    for text in case.texts if case.lines(r"\(UUID:", 1) else ():
        for line in text.lines:
            if match := _LISTED.search(line.text):
                cards.setdefault(match[1], text.evidence(line))
    if cards:
        return Count(len(cards), list(cards.values()))
    return next(_counted(case, _SMI_COUNT), None)


def _counted(case: Case, pattern: re.Pattern[str]) -> Iterator[Count]:
    """Yield what commands of one form counted."""
    for ran in commands(case):
        if not pattern.search(ran.command):
            continue
        if behind := _BEHIND.search(ran.command):
            yield Count(int(behind[1]), [ran.evidence])
        elif ran.output and (number := _NUMBER.match(ran.output[0][0])):
            yield Count(int(number[1]), [ran.evidence, ran.output[0][1]])
