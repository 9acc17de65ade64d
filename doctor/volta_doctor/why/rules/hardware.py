"""Cards and their buses: heat before a lost card, Xids of other cards, links below their width."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.catalog import Row, xids
from volta_doctor.checks.bus import Cards
from volta_doctor.checks.xid import kind, lines, told
from volta_doctor.facts.kernel_log import events
from volta_doctor.facts.kernel_log.events import Xid
from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why import words
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, possible, rule

_LOST = r"fallen off the bus|Xid \([^)]{5,24}\): 79|Xid 79|GPU is lost"
# A V100 halves its clock at 87 °C (nvidia-smi -q), newer cards a little above that.
_TOO_HOT_C = 87
_DEGREES = re.compile(r"(?<![\w.+-])(\d{2,3})\s?(?:°\s?)?C\b")
# Lines with limits, and those of other parts.
_NO_READING = re.compile(
    r"slowdown|shutdown|threshold|max(?:imum)? operating|target|limit|T\.?\s?limit|core \d|package"
    r"|cpu|nvme|composite|tctl|inlet|ambient|crit|\bhigh\b",
    re.IGNORECASE,
)
_OWN_LIMIT = r"GPU Slowdown Temp : (?P<limit>\d{2,3}) C"
_NAMES_A_CAUSE = "caused by previous Xid"
_BUS = re.compile(r"Xid \((?:PCI:)?([0-9a-f:.]{7,16})\)", re.I)
_CAUSE = re.compile(rf"{_NAMES_A_CAUSE}\s+(\d+)", re.I)


@rule("temp-gpu")
def hot_before_it_was_lost(case: Case, row: Row) -> Iterator[Finding]:
    """A card that grew too hot and then left the bus has switched itself off."""
    lost = case.lines(_LOST, 2)
    if not lost:
        return
    limit = int((case.groups(_OWN_LIMIT) or {}).get("limit", _TOO_HOT_C))
    found = [
        (int(match[1]), text.evidence(line))
        for text in case.texts
        for line in text.lines
        if not _NO_READING.search(line.text)
        for match in _DEGREES.finditer(line.text)
    ]
    hot = [(degrees, seen) for degrees, seen in found if limit <= degrees <= 130]
    if hot:
        degrees, seen = max(hot, key=lambda pair: pair[0])
        text = f"A GPU was at {degrees} °C (it slows down at {limit} °C) when one left the bus."
        yield likely(
            row.fail(text, seen, *lost),
            "a card switches itself off when it is too hot, and then it is gone from the bus",
        )


def _causes(case: Case) -> Iterator[tuple[str, int, Evidence]]:
    """Yield where the driver names the Xid that led to one: bus id, that Xid, the line."""
    for text in case.texts if case.lines(_NAMES_A_CAUSE, 1) else ():
        bus = ""
        for line in text.lines:
            if match := _BUS.search(line.text):  # it may be on the line before, in a broken one
                bus = bus_id(match[1])
            if bus and (match := _CAUSE.search(line.text)):
                yield bus, int(match[1]), text.evidence(line)


@lru_cache(maxsize=1)
def _logged(case: Case) -> list[Xid]:
    """Return the Xids of the kernel's own lines."""
    return events.xids(case.facts.kernel_log.data) if case.facts.kernel_log.data else []


@rule("xid-fatal")
def fatal_on_other_cards(case: Case, row: Row) -> Iterator[Finding]:
    """What stops a Volta card stops another one; the check itself judges Volta cards only."""
    cards = Cards(case.facts)
    by_bus: dict[str, list[Xid]] = {}
    for xid in _logged(case):
        if kind(xid) == "fatal" and (case.card == "other" or cards.is_other(xid.bus)):
            by_bus.setdefault(xid.bus, []).append(xid)
    for bus, found in by_bus.items():
        yield row.fail(f"{told(found)}.", *lines(found), subject=cards.subject(bus))


@rule("power-cable")
def without_power(case: Case, row: Row) -> Iterator[Finding]:
    """Xid 54 shows it as well; the check itself wants to hear nvidia-smi too."""
    for xid in _logged(case):
        if kind(xid) == "power":
            bus = Cards(case.facts).subject(xid.bus)
            yield row.fail(f"{told([xid])}.", xid.event.evidence, subject=bus)


@rule("inforom")
def worn_out(case: Case, row: Row) -> Iterator[Finding]:
    """Xid 93 speaks of wear, which is no fault yet; the check itself wants to hear NVML too."""
    for xid in _logged(case):
        if kind(xid) == "wear":
            bus = Cards(case.facts).subject(xid.bus)
            yield row.info(f"{told([xid])}.", xid.event.evidence, subject=bus)


@rule("xid-other-arch")
def of_a_later_card(case: Case, row: Row) -> Iterator[Finding]:
    """A number that Volta does not have is of another card, in its own line or as a cause."""
    later = {number for number, known in xids().items() if known.kind == "newer"}
    seen: dict[str, dict[int, Evidence]] = {}
    for xid in _logged(case):
        if xid.number in later:
            seen.setdefault(xid.bus, {}).setdefault(xid.number, xid.event.evidence)
    for bus, number, evidence in _causes(case):
        if number in later:
            seen.setdefault(bus, {}).setdefault(number, evidence)
    cards = Cards(case.facts)
    for bus, numbers in seen.items():
        what = "; ".join(f"Xid {number} ({xids()[number].meaning})" for number in sorted(numbers))
        say = row.warn if case.card == "other" else row.fail
        message = f"{what}: the GPU at {bus} is no Volta card, so this speaks of no V100."
        yield say(message, *numbers.values(), subject=cards.subject(bus))


@rule("xid-fold")
def echo_of_another(case: Case, row: Row) -> Iterator[Finding]:
    """Newer drivers name the Xid that a 45 follows from."""
    found: dict[str, list[tuple[int, Evidence]]] = {}
    for bus, number, evidence in _causes(case):
        found.setdefault(bus, []).append((number, evidence))
    cards = Cards(case.facts)
    for bus, pairs in found.items():
        numbers = ", ".join(dict.fromkeys(f"{number}" for number, _ in pairs))
        message = f"Xid 45 follows from Xid {numbers} and has no cause of its own."
        yield row.info(message, pairs[0][1], subject=cards.subject(bus))


class Link(NamedTuple):
    """A PCIe link: of which device, its lanes of how many, and its GT/s of how many."""

    device: str
    width: int
    lanes: int
    speed: float
    fastest: float
    evidence: list[Evidence]


_DEVICE = re.compile(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ", re.I)
_CAN = re.compile(r"LnkCap:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)")
_STATE = re.compile(r"LnkSta:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)")
_NVIDIA_CARD = re.compile(r"(?:3D|VGA compatible) controller.*NVIDIA", re.I)
# pci 0000:3b:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x4 link at
# 0000:3a:00.0 (capable of 126.016 Gb/s with 8.0 GT/s PCIe x16 link)
_LIMITED = re.compile(
    r"pci ([0-9a-f:.]{12,16}): [\d.]+ Gb/s available PCIe bandwidth, limited by"
    r" ([\d.]+) GT/s(?: PCIe)? x(\d+) link.*capable of.* ([\d.]+) GT/s(?: PCIe)? x(\d+) link",
    re.I,
)


def _links(case: Case) -> Iterator[Link]:
    """Yield lspci's links, with an empty device where the text was cut down to them."""
    for text in case.texts if case.lines("LnkSta:", 1) else ():
        device, can = "", None
        for line in text.lines:
            if _DEVICE.match(line.body):
                device, can = line.body, None
            elif match := _CAN.search(line.text):
                can = float(match[1]), int(match[2]), text.evidence(line)
            elif can and (match := _STATE.search(line.text)):
                seen = [can[2], text.evidence(line)]
                yield Link(device, int(match[2]), can[1], float(match[1]), can[0], seen)
                can = None


def _of_cards(case: Case) -> Iterator[Link]:
    """Yield the links of NVIDIA cards, by their bus ids, from lspci and from the kernel's start."""
    for link in _links(case):
        if _NVIDIA_CARD.search(link.device):
            yield link._replace(device=bus_id(link.device.split()[0]))
    for text in case.texts if case.lines("available PCIe bandwidth", 1) else ():
        for line in text.lines:
            match = _LIMITED.search(line.text)
            if match and case.lines(f"nvidia {re.escape(match[1])}|NVRM: .*{match[1][:12]}", 1):
                speed, fastest = float(match[2]), float(match[4])
                seen = [text.evidence(line)]
                yield Link(bus_id(match[1]), int(match[3]), int(match[5]), speed, fastest, seen)


@rule("pcie-width")
def fewer_lanes(case: Case, row: Row) -> Iterator[Finding]:
    """A link below what card and slot can do; an empty slot, another device, is none of ours."""
    for link in _of_cards(case):
        if link.width < link.lanes:
            text = f"The card at {link.device} has {link.width} of {link.lanes} PCIe lanes."
            yield row.fail(text, *link.evidence, subject=link.device)
    unnamed = [link for link in _links(case) if not link.device and link.width < link.lanes]
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
                f"The link of the card at {link.device} runs at {link.speed:g} of"
                f" {link.fastest:g} GT/s."
            )
            yield possible(
                row.info(text, *link.evidence, subject=link.device),
                "an idle card slows its link to save power: look again while it works",
            )


_UNCORRECTED = r"pcieport (?P<port>[0-9a-f:.]{12,16}): (?:AER: )?PCIe Bus Error: severity=Uncorrect"
_CORRECTED = r"pcieport (?P<port>[0-9a-f:.]{12,16}): (?:AER: )?PCIe Bus Error: severity=Correct"
_REACHED = (
    r"nvidia (?P<bus>[0-9a-f:.]{12,16}): (?:AER: can't recover|device has no AER-aware driver)"
)
_STORM = 100
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
        many = len(case.lines(_CORRECTED, _STORM)) >= _STORM or words.lines(case, _MANY, 1)
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
    named = words.lines(case, short, _STORM)
    return [e for e in named if _CARDS.search(e.text) and "pcieport" not in e.text][:2]
