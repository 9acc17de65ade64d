"""PCIe: links below what card and slot can do, and errors that a port reports."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.lspci import Device, cards, devices
from volta_doctor.why.rules import likely, possible, rule


class Link(NamedTuple):
    """A PCIe link: of the device with which bus id, its lanes of how many, its GT/s of how many.

    The bus id is empty where the text was cut down to the links.
    """

    bus: str
    width: int
    lanes: int
    speed: float
    fastest: float
    evidence: list[Evidence]


_CAN = re.compile(r"LnkCap:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)")
_STATE = re.compile(r"LnkSta:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)")
# pci 0000:3b:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x4 link at
# 0000:3a:00.0 (capable of 126.016 Gb/s with 8.0 GT/s PCIe x16 link)
_LIMITED = re.compile(
    r"pci ([0-9a-f:.]{12,16}): [\d.]+ Gb/s available PCIe bandwidth, limited by"
    r" ([\d.]+) GT/s(?: PCIe)? x(\d+) link.*capable of.* ([\d.]+) GT/s(?: PCIe)? x(\d+) link",
    re.I,
)


def _links(shown: Iterable[Device]) -> Iterator[Link]:
    """Yield the links that lspci shows."""
    for device in shown:
        can = None
        for line, evidence in device.details:
            if match := _CAN.search(line):
                can = float(match[1]), int(match[2]), evidence
            elif can and (match := _STATE.search(line)):
                seen = [can[2], evidence]
                yield Link(device.bus, int(match[2]), can[1], float(match[1]), can[0], seen)
                can = None


def _of_cards(case: Case) -> Iterator[Link]:
    """Yield the links of NVIDIA cards, from lspci and from the kernel's start."""
    yield from _links(cards(case))
    for match, evidence in case.matching(_LIMITED):
        if case.lines(f"nvidia {re.escape(match[1])}|NVRM: .*{match[1][:12]}", 1):
            speed, fastest = float(match[2]), float(match[4])
            bus, width, lanes = bus_id(match[1]), int(match[3]), int(match[5])
            yield Link(bus, width, lanes, speed, fastest, [evidence])


@rule("pcie-width")
def fewer_lanes(case: Case, row: Row) -> Iterator[Finding]:
    """A link below what card and slot can do; an empty slot, another device, is none of ours."""
    for link in _of_cards(case):
        if link.width < link.lanes:
            text = f"The card at {link.bus} has {link.width} of {link.lanes} PCIe lanes."
            yield row.fail(text, *link.evidence, subject=link.bus)
    unnamed = [link for link in _links(devices(case)) if not link.bus and link.width < link.lanes]
    if unnamed and case.lines("nvidia|Tesla V100", 1):
        of = ", ".join(f"x{link.width} of x{link.lanes}" for link in unnamed)
        seen = [line for link in unnamed for line in link.evidence]
        yield likely(
            row.fail(f"PCIe links run below their width: {of}.", *seen[:6]),
            "the lines do not say of which device they are, and the text speaks of GPUs",
        )


@rule("pcie-gen")
def slower_link(case: Case, row: Row) -> Iterator[Finding]:
    """A card that idles slows its link down; the text seldom shows whether it did."""
    for link in _of_cards(case):
        if link.speed < link.fastest:
            text = (
                f"The link of the card at {link.bus} runs at {link.speed:g} of"
                f" {link.fastest:g} GT/s."
            )
            yield possible(
                row.info(text, *link.evidence, subject=link.bus),
                "an idle card slows its link to save power: look again while it works",
            )


_UNCORRECTED = r"pcieport (?P<port>[0-9a-f:.]{12,16}): (?:AER: )?PCIe Bus Error: severity=Uncorrect"
_CORRECTED = r"pcieport (?P<port>[0-9a-f:.]{12,16}): (?:AER: )?PCIe Bus Error: severity=Correct"
_REACHED = (
    r"nvidia (?P<bus>[0-9a-f:.]{12,16}): (?:AER: can't recover|device has no AER-aware driver)"
)
_STORM = 100  # lines that are no accident (ours)
_MANY = re.compile(
    r"\b(?:hundreds|thousands|dozens|flood\w*|non-?stop|constantly|every second)\b", re.I
)
_CARDS = re.compile(r"\b(?:GPUs?|cards?|V100|TITAN|Tesla|RTX|Quadro|GTX|显卡)\b", re.IGNORECASE)


@rule("pcie-aer")
def above_the_card(case: Case, row: Row) -> Iterator[Finding]:
    """The port above a card reports for it; then the kernel names the card that was not helped."""
    reached = case.groups(_REACHED)
    if reached and (port := case.groups(_UNCORRECTED)):
        text = (
            f"PCIe errors at the port {port['port']} could not be corrected, and the GPU at"
            f" {reached['bus']} behind it was not recovered."
        )
        yield row.fail(text, *case.lines(_UNCORRECTED, 2), *case.lines(_REACHED, 1))
    elif (port := case.groups(_CORRECTED)) and (told := _told_below(case, port["port"])):
        many = len(case.lines(_CORRECTED, _STORM)) >= _STORM or case.lines(_MANY, 1)
        say = row.warn if many else row.info
        text = f"PCIe errors at the port {port['port']}, above a card, were corrected."
        finding = say(text, *case.lines(_CORRECTED, 2), *told)
        yield likely(finding, "the text says that the card is behind that port; lspci -t shows it")
    elif (port := case.groups(_CORRECTED)) and case.lines("NVRM|nvidia", 1):
        seen = case.lines(_CORRECTED, _STORM)
        say = row.warn if reached and len(seen) >= _STORM else row.info
        text = f"PCIe errors at the port {port['port']} were corrected (lines: {len(seen)})."
        yield possible(
            say(text, *seen[:2]), "the text does not say which device is behind that port"
        )


def _told_below(case: Case, port: str) -> list[Evidence]:
    """Return the words that put a card behind a port: they name both, and are no kernel's line."""
    short = re.compile(rf"\b{re.escape(port.removeprefix('0000:'))}")
    return [
        e for e in case.lines(short, _STORM) if _CARDS.search(e.text) and "pcieport" not in e.text
    ][:2]
