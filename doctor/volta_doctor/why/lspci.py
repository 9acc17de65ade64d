"""Devices as lspci lists them, with what it tells of their driver and their link."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence
from volta_doctor.why.case import Case

# 3b:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [Tesla V100 PCIe 32GB] [10de:1db6]
_DEVICE = re.compile(r"^\W*(?P<bus>(?:[\da-f]{4}:)?[\da-f]{2}:[\da-f]{2}\.[0-7])\s+\S", re.I)
_CARD = re.compile(r"(?:3D|VGA compatible|Display) controller.*NVIDIA", re.I)
_DETAIL = re.compile(r"Kernel driver in use:|Lnk(?:Cap|Sta):", re.I)
_ANY = r"(?:3D|VGA compatible|Display) controller|LnkSta:"


class Device(NamedTuple):
    """A device: its bus id, its line, and the lines below it on its driver and link.

    The first of a text that was cut down to such lines has no bus id and no name.
    """

    bus: str
    name: str
    evidence: list[Evidence]
    details: list[tuple[str, Evidence]]

    @property
    def is_card(self) -> bool:
        """Whether it is a GPU of NVIDIA."""
        return bool(_CARD.search(self.name))


@lru_cache(maxsize=1)
def devices(case: Case) -> list[Device]:
    """Return the devices of all listings in order."""
    return list(_each(case)) if case.lines(_ANY, 1) else []


def cards(case: Case) -> list[Device]:
    """Return NVIDIA's cards in the listings."""
    return [device for device in devices(case) if device.is_card]


def _each(case: Case) -> Iterator[Device]:
    source, device = "", Device("", "", [], [])
    for text, line in case.each_line():
        if text.name != source:
            yield device
            source, device = text.name, Device("", "", [], [])
        if match := _DEVICE.match(line.body):
            yield device
            device = Device(bus_id(match["bus"]), line.body, [text.evidence(line)], [])
        elif _DETAIL.search(line.text):
            device.details.append((line.text, text.evidence(line)))
    yield device
