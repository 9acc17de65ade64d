"""Which kernel driver has a card: NVIDIA's, or one that keeps it for virtual machines."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.lspci import Device, cards
from volta_doctor.why.rules import likely, rule
from volta_doctor.words import few

_ID = re.compile(r"\[10de:([\da-f]{4})\]", re.IGNORECASE)
_BOUND = re.compile(r"Kernel driver in use:\s*(\S+)", re.IGNORECASE)
_PASSED_ON = ("vfio-pci", "pci-stub", "xen-pciback", "pciback", "uio_pci_generic", "igb_uio")
# vfio-pci.ids=10de:1db6 of the command line, options vfio-pci ids=10de:1db6 of modprobe.d,
# vfio_pci: add [10de:1db6[ffffffff:ffffffff]] of the kernel log
_RESERVED = re.compile(r"vfio[-_]pci(?:[. ]ids=|: add \[)([\da-f:,]+)", re.IGNORECASE)
_FOR_GUESTS = r"vfio[-_]pci\.ids=|options vfio-pci|is not viable|pass-?through|hostpci\d"
_HERE = ("smi-no-devices", "no-cuda-device", "module-takes-no-card", "torch-sees-no-cuda")


@rule("pci-driver-binding")
def bound_to_another(case: Case, row: Row) -> Iterator[Finding]:
    """A card that is meant for a guest and is not there, or the other way round."""
    shown, reserved = cards(case), _reserved(case)
    devices = {found[1].lower() for card in shown if (found := _ID.search(card.name))}
    if reserved and devices and devices.isdisjoint(reserved[0]):
        ids, theirs = (
            few([f"10de:{one}" for one in sorted(of)], 3) for of in (reserved[0], devices)
        )
        seen = [evidence for card in shown for evidence in [*card.evidence, *_driver(card)[1]]]
        text = f"vfio-pci is to take {ids}, and the cards are {theirs}."
        yield row.fail(text, reserved[1], *seen[:4])
        return
    wanted_here = case.shows(*_HERE) or case.found("driver-loaded")
    for card in shown:
        driver, line = _driver(card)
        if driver in _PASSED_ON and wanted_here:
            text = f"{card.bus} is bound to {driver}: it is kept for a virtual machine."
            yield row.fail(text, *card.evidence, *line)
            return
        if driver in ("nvidia", "nouveau") and (guests := case.lines(_FOR_GUESTS, 1)):
            text = f"{card.bus} is bound to {driver}, not to vfio-pci."
            finding = row.fail(text, *card.evidence, *line, *guests)
            yield likely(finding, "the text speaks of passing a card to a virtual machine")
            return


def _driver(card: Device) -> tuple[str, list[Evidence]]:
    """Return the kernel driver that has a card, and the line; an empty name without one."""
    for line, evidence in card.details:
        if match := _BOUND.search(line):
            return match[1], [evidence]
    return "", []


def _reserved(case: Case) -> tuple[set[str], Evidence] | None:
    """Return NVIDIA's device ids that vfio-pci is told to take."""
    for match, evidence in case.matching(_RESERVED):
        ids = {part.split(":")[1] for part in match[1].lower().split(",") if "10de:" in part}
        if ids:
            return ids, evidence
    return None
