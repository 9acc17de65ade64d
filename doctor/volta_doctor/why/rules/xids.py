"""Xids that say something of a card which the checks do not ask, or of another card."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from volta_doctor.catalog import Row, xids
from volta_doctor.checks.bus import Cards
from volta_doctor.checks.xid import kind, lines, told
from volta_doctor.facts.kernel_log import events
from volta_doctor.facts.kernel_log.events import Xid
from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import rule

_NAMES_A_CAUSE = "caused by previous Xid"
_BUS = re.compile(r"Xid \((?:PCI:)?([0-9a-f:.]{7,16})\)", re.I)
_CAUSE = re.compile(rf"{_NAMES_A_CAUSE}\s+(\d+)", re.I)


def _causes(case: Case) -> Iterator[tuple[str, int, Evidence]]:
    """Yield where the driver names the Xid that led to one: bus id, that Xid, the line."""
    bus = ""  # it may be on the line before, in a broken one
    for text, line in case.each_line() if case.lines(_NAMES_A_CAUSE, 1) else ():
        if match := _BUS.search(line.text):
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
    return _of_kind(case, "power", row.fail)


@rule("inforom")
def worn_out(case: Case, row: Row) -> Iterator[Finding]:
    """Xid 93 speaks of wear, which is no fault yet; the check itself wants to hear NVML too."""
    return _of_kind(case, "wear", row.info)


def _of_kind(case: Case, name: str, say: Callable[..., Finding]) -> Iterator[Finding]:
    for xid in _logged(case):
        if kind(xid) == name:
            bus = Cards(case.facts).subject(xid.bus)
            yield say(f"{told([xid])}.", xid.event.evidence, subject=bus)


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
