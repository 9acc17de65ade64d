"""Are the NVLinks up, at full speed, and free of errors?"""

from collections.abc import Callable
from typing import NamedTuple

from volta_doctor.catalog import Row, compat
from volta_doctor.checks.earlier import DAY, Counter, Point, earlier, over
from volta_doctor.checks.gpu import (
    Inapplicable,
    device_id,
    gpus,
    per_gpu,
    seen,
    shown,
    told,
    unsupported,
)
from volta_doctor.checks.registry import check
from volta_doctor.facts.history import GpuSample, crc_errors
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, NvLinkFacts, Reading, value
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import duration

_LINKS = 6
_MODULES = ("SXM2", "SXM3")
_SPEED_MBPS = 25_781
_CRC_PER_SECOND = 100


def is_module(gpu: GpuFacts) -> bool:
    """Say whether a Volta card is an SXM module, by its name or PCI id: only those need NVLink.

    A TITAN V has none; Quadro GV100 and DGX Station cards have those that a bridge joins.
    """
    return any(module in _names(gpu) for module in _MODULES)


def _names(gpu: GpuFacts) -> str:
    return f"{value(gpu.name) or ''} {compat().volta.names.get(device_id(gpu), '')}".strip()


def links(gpu: GpuFacts) -> list[NvLinkFacts]:
    """Return the links, none of a card without NVLink. Raises Missing where NVML does not tell."""
    if unsupported(gpu.nvlinks):
        return []
    found = told(gpu.nvlinks, "NVLinks")
    for number, link in enumerate(found):
        told(link.active, f"state of NVLink {number}")
    return found


def active_links(gpu: GpuFacts) -> dict[int, NvLinkFacts]:
    """Return the active links by number. Raises Inapplicable where there is none."""
    active = {number: link for number, link in enumerate(links(gpu)) if link.active is True}
    if not active:
        raise Inapplicable("This card has no active NVLink.")
    return active


def named(numbers: list[int]) -> str:
    """Put link numbers in words."""
    return f"link{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}"


@check("nvl-count")
@per_gpu
def nvl_count(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A link that is down takes its share of the bandwidth; what is wired is the board's choice."""
    profile = facts.expect.nvlinks if facts.expect else None
    if profile is None and not _names(gpu):
        raise Missing(f"NVML does not tell which card it is: name {shown(gpu.name)}.")
    if profile is None and not is_module(gpu):
        return row.ok(f"{value(gpu.name) or _names(gpu)} is no SXM module, so it needs no NVLink.")
    expected = _LINKS if profile is None else profile
    found = links(gpu)
    down = [number for number, link in enumerate(found) if not link.active]
    active = len(found) - len(down)
    evidence = seen(facts, f"{len(found)} NVLinks, {active} active")
    text = f"{active} of {expected} NVLinks are active"
    if active >= expected:
        return row.ok(f"{active} NVLinks are active.", evidence)
    if down:
        text = f"{text}: {named(down)} down"
    if profile is not None:
        return row.fail(f"{text}. Such a host has all of them.", evidence)
    host = facts.host.data
    if host and host.virtual:
        text = f"{text}. A virtual machine lacks those to cards that it is not given."
        return row.info(text, evidence)
    if _some_active(facts):
        return row.fail(f"{text}. {_BY_DESIGN}", evidence)
    if sum(is_module(each) for each in gpus(facts)) == 1:
        text = "It has no active NVLink: an adapter from SXM to a PCIe slot wires none."
        return row.info(text, evidence)
    text = (
        "No NVLink of any card is active. Adapters from SXM to a PCIe slot wire none; on a board"
        f" that does, all are down. {_BY_DESIGN}"
    )
    return row.warn(text, evidence)


_BY_DESIGN = "If the board wires no more, say so: nvlinks in a profile of this site."


def _some_active(facts: Facts) -> bool:
    return any(value(link.active) for gpu in gpus(facts) for link in value(gpu.nvlinks) or [])


@check("nvl-speed")
@per_gpu
def nvl_speed(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """All of a Volta card's links run at one speed."""
    speeds = {
        number: told(link.speed_mbps, f"speed of NVLink {number}")
        for number, link in active_links(gpu).items()
    }
    slow = [number for number, speed in speeds.items() if speed != _SPEED_MBPS]
    listed = ", ".join(f"link {number} {speed / 1000:.3f}" for number, speed in speeds.items())
    evidence = seen(facts, f"GB/s: {listed}")
    if slow:
        text = f"NVLink speed is not {_SPEED_MBPS / 1000:.3f} GB/s on {named(slow)}."
        return row.warn(text, evidence)
    return row.ok(f"{len(speeds)} active NVLinks at {_SPEED_MBPS / 1000:.3f} GB/s.", evidence)


def counts(
    gpu: GpuFacts, what: str, counter: Callable[[NvLinkFacts], Reading[int]]
) -> dict[int, int]:
    """Return a counter of every active link. Raises Inapplicable, Missing."""
    readings = {number: counter(link) for number, link in active_links(gpu).items()}
    if all(map(unsupported, readings.values())):
        raise Inapplicable(f"This card counts no NVLink {what}.")
    return {
        number: told(reading, f"{what} of NVLink {number}")
        for number, reading in readings.items()
        if not unsupported(reading)
    }


def of_link(number: int, name: str) -> Counter:
    """Return the counter of one link in a sample."""

    def counter(sample: GpuSample) -> int | None:
        if number >= len(sample.nvlinks):
            return None
        count: int | None = getattr(sample.nvlinks[number], name)
        return count

    return counter


class Compared(NamedTuple):
    """A counter of a GPU's links beside what it read before; by link number, without zeros.

    `alone` are those with nothing to compare, and why; the others are in `before` and, where they
    have risen within a day, in `rises`.
    """

    now: dict[int, int]
    before: dict[int, list[Point]]
    rises: dict[int, int]
    alone: dict[int, str]

    @property
    def evidence(self) -> list[Evidence]:
        """Return the earlier readings."""
        return [
            Evidence("history", f"link {number}: {over(DAY, points).evidence.text}")
            for number, points in self.before.items()
        ]

    def shown_rises(self, what: str) -> str:
        """Put the rises in words."""
        span = max(over(DAY, self.before[number]).age for number in self.rises)
        listed = ", ".join(f"{rise} on link {number}" for number, rise in self.rises.items())
        return f"New {what} in the last {duration(span)}: {listed}."

    def shown_alone(self, what: str) -> str:
        """Put the readings that nothing can be compared with in words."""
        listed = ", ".join(f"{self.now[number]} on link {number}" for number in self.alone)
        return f"{what[0].upper()}{what[1:]}: {listed}. {next(iter(self.alone.values()))}"


def compare(facts: Facts, gpu: GpuFacts, now: dict[int, int], name: str) -> Compared:
    """Hold a counter of the links (`name` as samples have it) against the history."""
    before, alone = {}, {}
    for number, count in now.items():
        if count == 0:
            continue
        try:
            before[number] = earlier(facts, gpu, count, of_link(number, name))
        except Missing as reason:
            alone[number] = str(reason)
    rises = {n: now[n] - over(DAY, points).reading for n, points in before.items()}
    return Compared(now, before, {n: rise for n, rise in rises.items() if rise > 0}, alone)


@check("nvl-crc")
@per_gpu
def nvl_crc(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A link repeats what arrives damaged: a few cost time, many mean that it will fail."""
    now = counts(gpu, "CRC errors", _crc)
    compared, total = compare(facts, gpu, now, "crc"), sum(now.values())
    evidence = [_listed(facts, "CRC errors", now), *compared.evidence]
    for number, points in compared.before.items():
        rate = (now[number] - points[0].reading) / points[0].age
        if rate >= _CRC_PER_SECOND:
            span = duration(points[0].age)
            text = f"{rate:.0f} CRC errors a second on link {number} in the last {span}."
            return row.fail(text, *evidence, count=total)
    if compared.rises:
        return row.warn(compared.shown_rises("CRC errors"), *evidence, count=total)
    if compared.alone:
        return row.unknown(compared.shown_alone("CRC errors"), *evidence)
    return row.ok(f"{total} CRC errors since the driver was loaded, none new.", *evidence)


@check("nvl-replay")
@per_gpu
def nvl_replay(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A replay is a packet that had to be sent again."""
    now = counts(gpu, "replays", lambda link: link.replays)
    return _any_rise(facts, row, "replays", now, compare(facts, gpu, now, "replays"))


@check("nvl-recovery")
@per_gpu
def nvl_recovery(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """A recovery is a link that had to be trained again."""
    now = counts(gpu, "recoveries", lambda link: link.recoveries)
    return _any_rise(facts, row, "recoveries", now, compare(facts, gpu, now, "recoveries"))


def _any_rise(
    facts: Facts, row: Row, what: str, now: dict[int, int], compared: Compared
) -> Finding:
    total, evidence = sum(now.values()), [_listed(facts, what, now), *compared.evidence]
    if compared.rises:
        return row.fail(compared.shown_rises(what), *evidence, count=total)
    if compared.alone:
        return row.warn(compared.shown_alone(what), *evidence, count=total)
    return row.ok(f"{total} {what} since the driver was loaded, none new.", *evidence)


def _listed(facts: Facts, what: str, now: dict[int, int]) -> Evidence:
    return seen(facts, f"{what} by link: {', '.join(map(str, now.values()))}")


def _crc(link: NvLinkFacts) -> Reading[int]:
    if link.crc_flit is None or link.crc_data is None:
        return None
    count = crc_errors(link)
    return link.crc_flit if count is None else count
