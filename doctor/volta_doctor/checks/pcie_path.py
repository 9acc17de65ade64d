"""The way from the CPU to the GPUs: errors on it, and detours."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.bus import Cards
from volta_doctor.checks.log import clean, kernel_log, shown, times
from volta_doctor.checks.registry import check
from volta_doctor.facts.kernel_log.events import PcieError, pcie_errors
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.pci import DEVICES, PciFacts
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import several

_HOUR_S = 3600.0
_MANY_PER_HOUR = 100
# On either one the GPUs' traffic goes up to the root port and back, or is refused there.
_REDIRECTING = ("SrcValid", "ReqRedir")


def _gpus_below(pci: PciFacts, bus: str) -> list[str]:
    """Return the GPUs of which an error at a bus id speaks: any function of one, or a bridge."""
    slot = bus.rsplit(".", 1)[0]
    return [
        gpu.bus_id
        for gpu in pci.gpus
        if gpu.bus_id.rsplit(".", 1)[0] == slot or bus in (gpu.bridges or [])
    ]


def _one_form(errors: list[PcieError]) -> list[PcieError]:
    """Return the errors of one form of line: the kernel writes up to two lines of each."""
    forms = Counter(error.form for error in errors)
    most = max(forms, key=lambda form: forms[form], default="")
    return [error for error in errors if error.form == most]


def _busiest_hour(errors: list[PcieError]) -> int:
    found = sorted(error.event.time for error in errors)
    return max((bisect_right(found, t + _HOUR_S) - n for n, t in enumerate(found)), default=0)


def _by_subject(facts: Facts, pci: PciFacts, errors: list[PcieError]) -> dict[str, list[PcieError]]:
    """Return the errors that concern a GPU: by GPU, or by the bridge where it has several below."""
    cards = Cards(facts)
    found: dict[str, list[PcieError]] = {}
    for error in errors:
        below = _gpus_below(pci, error.bus)
        if below:
            name = cards.subject(below[0]) if len(below) == 1 else error.bus
            found.setdefault(name, []).append(error)
    return found


@check("pcie-aer")
def pcie_aer(facts: Facts, row: Row) -> Iterable[Finding]:
    """A link that errs is a card badly seated, a bad riser or a bad slot."""
    pci, host = facts.pci.need(), facts.host.data
    errors = pcie_errors(kernel_log(facts))
    if errors and any(gpu.bridges is None for gpu in pci.gpus):
        raise Missing("The log holds PCIe errors, and the snapshot does not tell the bridges.")
    concerned = _by_subject(facts, pci, errors)
    for name, of_name in concerned.items():
        devices = dict.fromkeys(error.bus for error in of_name)
        fatal = [
            error
            for bus in devices
            for error in _one_form([e for e in of_name if e.bus == bus and not e.corrected])
        ]
        corrected = [
            error
            for bus in devices
            for error in _one_form([e for e in of_name if e.bus == bus and e.corrected])
        ]
        if fatal:
            text = f"Uncorrected PCIe error {times(len(fatal))} at {', '.join(devices)}."
            seen, verdict = fatal, row.fail
        else:
            busiest = _busiest_hour(corrected)
            text = (
                f"Corrected PCIe errors at {', '.join(devices)}: {len(corrected)},"
                f" at most {busiest} in an hour."
            )
            seen, verdict = corrected, row.warn if busiest >= _MANY_PER_HOUR else row.info
        yield verdict(text, *shown([e.event for e in seen]), subject=name, count=len(seen))
    if not concerned and host and host.virtual:
        yield row.skip("A virtual machine: PCIe errors are reported to its host.")
    elif not concerned:
        elsewhere = ", ".join(dict.fromkeys(error.bus for error in errors))
        other = f"; other devices have some: {elsewhere}" if elsewhere else ""
        yield row.ok(f"No PCIe error of a GPU or a bridge above one {clean(facts)}{other}.")


@check("acs")
def acs(facts: Facts, row: Row) -> Finding:
    """Access control sends what one GPU writes to another up to the CPU, where it may be lost."""
    pci, host = facts.pci.need(), facts.host.need()
    if len(pci.gpus) < 2:
        return row.ok(f"{len(pci.gpus)} GPU: there is no traffic between GPUs.")
    if host.virtual is None:
        return row.unknown(f"Bare metal or virtual? {host.virtual_hint}.")
    if host.virtual:
        where = Evidence("/proc/cpuinfo", host.virtual_hint)
        return row.ok("A virtual machine: the bridges are its host's.", where)
    above = {bus for gpu in pci.gpus for bus in gpu.bridges or []}
    if any(gpu.bridges is None for gpu in pci.gpus) or above - {b.bus_id for b in pci.bridges}:
        return row.unknown("It is not known which bridges are above the GPUs, or how they are set.")
    bad = [bridge for bridge in pci.bridges if set(bridge.acs or []).intersection(_REDIRECTING)]
    if bad:
        names = ", ".join(bridge.bus_id for bridge in bad)
        text = (
            f"ACS redirects traffic at {len(bad)} of {several(len(pci.bridges), 'bridge')} above"
            f" the GPUs: {names}."
        )
        return row.warn(
            text,
            *(
                Evidence(f"{DEVICES}/{b.bus_id}/config", f"ACSCtl: {'+ '.join(b.acs or [])}+")
                for b in bad
            ),
            count=len(bad),
        )
    unread = [bridge for bridge in pci.bridges if bridge.acs is None]
    if unread:
        return row.unknown(
            f"{len(unread)} of {several(len(pci.bridges), 'bridge')} above the GPUs could not be"
            f" read: {unread[0].acs_problem}."
        )
    return row.ok(
        f"ACS redirects nothing at the {several(len(pci.bridges), 'bridge')} above the GPUs."
    )
