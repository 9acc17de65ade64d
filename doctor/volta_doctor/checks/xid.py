"""Xids: what the driver reported of a GPU, by their meaning on Volta."""

from collections.abc import Collection, Iterable

from volta_doctor.catalog import Row, XidRow, xids
from volta_doctor.checks.bus import Cards
from volta_doctor.checks.gpu import subject
from volta_doctor.checks.log import clean, kernel_log, shown, times, window
from volta_doctor.checks.registry import check
from volta_doctor.facts.kernel_log import events as kernel_events
from volta_doctor.facts.kernel_log.events import Xid
from volta_doctor.facts.model import Facts
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import few

_CLEANUP = 45  # what follows a fatal Xid: the driver tears the channels down
_ECHO_S = 60.0
_NO_POWER = 8  # nvmlReturn_t, and the exit code of nvidia-smi that comes from it


def kind(xid: Xid) -> str:
    """Return the kind of the catalogue."""
    row = xids().get(xid.number)
    return row.kind if row else "other"


def by_subject(
    facts: Facts, row: Row, kinds: Collection[str]
) -> tuple[dict[str, list[Xid]], list[Finding]]:
    """Return the Xids of some kinds by GPU, and a skip for each GPU that the row is not for."""
    cards = Cards(facts)
    found: dict[str, list[Xid]] = {}
    skipped: dict[str, Finding] = {}
    for xid in kernel_events.xids(kernel_log(facts)):
        name = cards.subject(xid.bus)
        if kind(xid) not in kinds:
            continue
        if cards.is_other(xid.bus):
            text = f"{xid.bus} is no Volta card, so its Xids have other meanings."
            skipped[name] = row.skip(text, xid.event.evidence, subject=name)
        else:
            found.setdefault(name, []).append(xid)
    return found, list(skipped.values())


def echoes(events: list[Xid]) -> list[tuple[Xid, Xid]]:
    """Return the cleanups that follow a fatal Xid of the same GPU, each with that parent."""
    pairs, parent = [], None
    for xid in events:
        if kind(xid) == "fatal":
            parent = xid
        elif xid.number == _CLEANUP and parent and xid.event.time <= parent.event.time + _ECHO_S:
            pairs.append((xid, parent))
    return pairs


def told(events: list[Xid]) -> str:
    """Put Xids in words: numbers, meanings, how often, when first and which programs."""
    parts = []
    for number in dict.fromkeys(xid.number for xid in events):
        same = [xid for xid in events if xid.number == number]
        known: XidRow | None = xids().get(number)
        meaning = f" ({known.meaning})" if known else ""
        moment = same[0].event.moment
        first = f", first {moment}" if moment else ""
        parts.append(f"Xid {number}{meaning} {times(len(same))}{first}{_programs(same)}")
    return "; ".join(parts)


def _programs(events: list[Xid]) -> str:
    named = dict.fromkeys(f"{x.name or 'a process'} (pid {x.pid})" for x in events if x.pid)
    return f", by {few(list(named))}" if named else ""


def lines(events: list[Xid]) -> list[Evidence]:
    """Return the first and last line of each number."""
    numbers = dict.fromkeys(xid.number for xid in events)
    same = [[xid.event for xid in events if xid.number == number] for number in numbers]
    return [evidence for group in same for evidence in shown(group)]


def _none(facts: Facts, row: Row, what: str) -> Finding:
    return row.ok(f"There is {what} {clean(facts)}.")


@check("xid-fatal")
def xid_fatal(facts: Facts, row: Row) -> Iterable[Finding]:
    """The worst kind decides; what no other check judges is at least told."""
    levels = {"fatal": row.fail, "suspect": row.warn, "newer": row.info, "other": row.info}
    found, skipped = by_subject(facts, row, levels)
    for name, events in found.items():
        worst = next(k for k in levels if any(kind(xid) == k for xid in events))
        newer = " Such a number is of a later card than Volta." if worst == "newer" else ""
        text = f"{told(events)}.{newer}"
        yield levels[worst](text, *lines(events), subject=name, count=len(events))
    yield from skipped
    if not found:
        yield _none(facts, row, "no fatal Xid of a Volta card")


@check("xid-63")
def xid_63(facts: Facts, row: Row) -> Iterable[Finding]:
    """A retired page leaves use only when the driver is loaded again."""
    found, skipped = by_subject(facts, row, {"retired"})
    for name, events in found.items():
        yield row.warn(f"{told(events)}.", *lines(events), subject=name, count=len(events))
    yield from skipped
    if not found:
        yield _none(facts, row, "no Xid 63 of a Volta card")


@check("xid-app")
def xid_app(facts: Facts, row: Row) -> Iterable[Finding]:
    """A program's fault, unless it is the echo of a fatal Xid, of which xid-fold tells."""
    found, skipped = by_subject(facts, row, {"app", "fatal"})
    clean = True
    for name, events in found.items():
        echoed = [echo for echo, _ in echoes(events)]
        own = [xid for xid in events if kind(xid) == "app" and xid not in echoed]
        if own:
            clean = False
            yield row.warn(f"{told(own)}.", *lines(own), subject=name, count=len(own))
    yield from skipped
    if clean:
        yield _none(facts, row, "no Xid of a program on a Volta card")


@check("xid-fold")
def xid_fold(facts: Facts, row: Row) -> Iterable[Finding]:
    """The teardown after a fatal Xid is no second problem."""
    found, skipped = by_subject(facts, row, {"app", "fatal"})
    clean = True
    for name, events in found.items():
        if pairs := echoes(events):
            clean = False
            parents = ", ".join(dict.fromkeys(f"{parent.number}" for _, parent in pairs))
            text = f"Xid {_CLEANUP} {times(len(pairs))} within {_ECHO_S:.0f} s after Xid {parents}."
            seen = [pairs[0][1].event.evidence, *shown([echo.event for echo, _ in pairs])]
            yield row.info(text, *seen, subject=name, count=len(pairs))
    yield from skipped
    if clean:
        yield _none(facts, row, "no Xid 45 after a fatal one")


@check("power-cable")
def power_cable(facts: Facts, row: Row) -> Iterable[Finding]:
    """A card without its own power works slowly, if at all."""
    smi, nvml, log = facts.smi.need(), facts.nvml.data, kernel_log(facts)
    found, skipped = by_subject(facts, row, {"power"})
    for name, events in found.items():
        yield row.fail(f"{told(events)}.", *lines(events), subject=name, count=len(events))
    for gpu in nvml.gpus if nvml else []:
        name, refused = subject(gpu), gpu.handle_error
        if refused and refused.error == _NO_POWER and name not in found:
            found[name] = []
            seen = Evidence("nvmlDeviceGetHandleByIndex", str(refused))
            yield row.fail("NVML says that its power is not attached.", seen, subject=name)
    yield from skipped
    exit_code = Evidence("nvidia-smi -q -x", f"exit code {smi.exit_code}")
    if smi.exit_code == _NO_POWER and not found:
        yield row.fail("nvidia-smi says that power is not attached to a GPU.", exit_code)
    elif found:
        return
    elif smi.exit_code is not None:
        yield row.ok(
            f"nvidia-smi does not complain of it, and no Xid 54 is {window(log)}.", exit_code
        )
    elif nvml and nvml.gpus:
        yield row.ok(f"NVML opens the GPUs, and no Xid 54 is {window(log)}.")
    else:
        gone = "is not installed" if smi.path is None else "gave no answer"
        yield row.unknown(f"nvidia-smi {gone}, and NVML lists no GPU.")
