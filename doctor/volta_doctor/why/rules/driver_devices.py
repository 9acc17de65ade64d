"""Which kernel driver has a card, and for which kernels there is a module."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.commands import commands
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.rules.driver import every_line
from volta_doctor.words import few

# 3b:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [Tesla V100 PCIe 32GB] [10de:1db6]
_CARD = re.compile(
    r"^\W*((?:[\da-f]{4}:)?[\da-f]{2}:[\da-f]{2}\.\d)\s+(?:3D|VGA|Display)[^:]*:.*NVIDIA",
    re.I,
)
_ID = re.compile(r"\[10de:([\da-f]{4})\]", re.IGNORECASE)
_DEVICE = re.compile(r"^\W*(?:[\da-f]{4}:)?[\da-f]{2}:[\da-f]{2}\.\d\s", re.IGNORECASE)
_BOUND = re.compile(r"Kernel driver in use:\s*(\S+)", re.IGNORECASE)
_PASSED_ON = ("vfio-pci", "pci-stub", "xen-pciback", "pciback", "uio_pci_generic", "igb_uio")
# vfio-pci.ids=10de:1db6 of the command line, options vfio-pci ids=10de:1db6 of modprobe.d,
# vfio_pci: add [10de:1db6[ffffffff:ffffffff]] of the kernel log
_RESERVED = re.compile(r"vfio[-_]pci(?:[. ]ids=|: add \[)([\da-f:,]+)", re.IGNORECASE)
_FOR_GUESTS = r"vfio[-_]pci\.ids=|options vfio-pci|is not viable|pass-?through|hostpci\d"
_HERE = ("smi-no-devices", "no-cuda-device", "module-takes-no-card", "torch-sees-no-cuda")
# The first line of uname -a.
_RUNNING = re.compile(r"(?:^|\s)Linux \S+ (\d+\.\d+\.[\w.+~-]+) ")
_RELEASE = re.compile(r"\d+\.\d+\.[\w.+~-]+$")
# nvidia/550.54.14, 5.15.0-91-generic, x86_64: installed
_DKMS = re.compile(r"\bnvidia\S*(?:/|, ?)[\d.]+, (\d+\.\d+\.[^,\s]+), \w+: installed")
_MODULE = re.compile(r"/lib/modules/([^/\s]+)/\S*/nvidia(?:-current)?\.ko")


class Card(NamedTuple):
    """A card in lspci's listing: its slot, device id, and the kernel driver that has it."""

    slot: str
    device: str | None
    driver: str | None
    evidence: list[Evidence]


@rule("pci-driver-binding")
def pci_driver_binding(case: Case, row: Row) -> Iterator[Finding]:
    """A card that is meant for a guest and is not there, or the other way round."""
    cards = list(_cards(case))
    reserved = _reserved(case)
    devices = {card.device for card in cards if card.device}
    if reserved and devices and devices.isdisjoint(reserved[0]):
        ids, theirs = (
            few([f"10de:{one}" for one in sorted(of)], 3) for of in (reserved[0], devices)
        )
        seen = [evidence for card in cards for evidence in card.evidence]
        text = f"vfio-pci is to take {ids}, and the cards are {theirs}."
        yield row.fail(text, reserved[1], *seen[:4])
        return
    wanted_here = any(name in case.symptoms for name in _HERE) or case.found("driver-loaded")
    for card in cards:
        if card.driver in _PASSED_ON and wanted_here:
            text = f"{card.slot} is bound to {card.driver}: it is kept for a virtual machine."
            yield row.fail(text, *card.evidence)
            return
        if card.driver in ("nvidia", "nouveau") and case.lines(_FOR_GUESTS, 1):
            text = f"{card.slot} is bound to {card.driver}, not to vfio-pci."
            finding = row.fail(text, *card.evidence, *case.lines(_FOR_GUESTS, 1))
            yield likely(finding, "the text speaks of passing a card to a virtual machine")
            return


@rule("kmod-next-boot")
def kmod_next_boot(case: Case, row: Row) -> Iterator[Finding]:
    """There are modules, and none for the kernel that runs."""
    running = next(_uname(case), None)
    built: dict[str, Evidence] = {}
    for line, evidence in every_line(case):
        if match := _RUNNING.search(line):
            running = running or (match[1], evidence)
        for pattern in (_DKMS, _MODULE):
            if match := pattern.search(line):
                built.setdefault(match[1], evidence)
    if running and built and running[0] not in built:
        kernels = few(sorted(built), 3)
        text = f"Kernel {running[0]} runs, and there are NVIDIA modules for {kernels} only."
        yield row.fail(text, running[1], *built.values())


def _uname(case: Case) -> Iterator[tuple[str, Evidence]]:
    """Yield what `uname -r` printed."""
    for ran in commands(case):
        if "uname -r" in ran.command and ran.output and _RELEASE.match(ran.output[0][0]):
            yield ran.output[0]


def _cards(case: Case) -> Iterator[Card]:
    """Yield NVIDIA's display devices in listings of lspci -k."""
    card: Card | None = None
    for line, evidence in every_line(case):
        if match := _CARD.search(line):
            if card:
                yield card
            device = _ID.search(line)
            card = Card(match[1], device[1].lower() if device else None, None, [evidence])
        elif card and _DEVICE.search(line):
            yield card
            card = None
        elif card and (bound := _BOUND.search(line)):
            yield card._replace(driver=bound[1], evidence=[*card.evidence, evidence])
            card = None
    if card:
        yield card


def _reserved(case: Case) -> tuple[set[str], Evidence] | None:
    """Return NVIDIA's device ids that vfio-pci is told to take."""
    for line, evidence in every_line(case):
        if match := _RESERVED.search(line):
            ids = {part.split(":")[1] for part in match[1].lower().split(",") if "10de:" in part}
            if ids:
                return ids, evidence
    return None
