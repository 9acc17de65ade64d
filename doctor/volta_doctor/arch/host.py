"""Which cards to judge for, which driver they have, and what this host says of both."""

import re
from typing import NamedTuple

from msgspec import structs

from volta_doctor.arch.rules import Card, volta
from volta_doctor.catalog import compat
from volta_doctor.facts.gather import gather
from volta_doctor.facts.model import Facts, Section
from volta_doctor.facts.modules import ModulesFacts
from volta_doctor.facts.nvml import value
from volta_doctor.probe import CannotLook, Probe
from volta_doctor.profile import card_name, is_volta

_SECTIONS = ("host", "pci", "modules", "nvml")


class Host(NamedTuple):
    """The cards, one of each kind, and the version of their driver, None where it is not known.

    `facts` has the sections of this host that bear on it, none where another host is meant.
    """

    cards: list[Card]
    driver: str | None
    facts: Facts


def card_named(text: str, known_by: str) -> Card:
    """Return the card of a name: v100, 7.0, sm_70, "Tesla T4". Raises ValueError."""
    match = re.fullmatch(r"(?:sm_?|compute_?)?(\d{1,2})\.?(\d)", text.strip().lower())
    if match:
        return Card(
            name=f"sm_{match[1]}{match[2]}",
            capability=f"{match[1]}.{match[2]}",
            known_by=known_by,
        )
    gpus = compat().gpus
    capability = gpus.capability(" ".join(re.findall(r"[a-z0-9]+", text.lower())))
    if capability is None:
        names = ", ".join(gpus.capabilities)
        raise ValueError(f"no card {text!r}; there are {names}, and any as 7.0 or sm_70")
    return Card(name=text, capability=capability, known_by=known_by)


def look(probe: Probe, gpu: Card | None, driver: str | None) -> Host:
    """Return what to judge for: the given card and driver, else those of this host.

    A given card means some other host. Raises CannotLook where this host has an NVIDIA card, and
    nothing tells of what compute capability.
    """
    if gpu:
        return Host([gpu], driver, _with_driver(Facts(), driver))
    facts = gather(probe, _SECTIONS).facts
    cards = _cards(facts)
    loaded = facts.modules.data.loaded_version if facts.modules.data else None
    if not cards:
        reason = "assumed, as this host shows no NVIDIA card"
        assumed = structs.replace(volta(), known_by=reason)
        # What has fallen off the bus, or is hidden by the driver, is a card nevertheless.
        cards, facts = [assumed], facts if loaded else Facts()
    if driver:
        return Host(cards, driver, _with_driver(Facts(), driver))
    told = value(facts.nvml.data.driver_version) if facts.nvml.data else None
    return Host(cards, loaded or told, facts)


def _with_driver(facts: Facts, driver: str | None) -> Facts:
    if driver is None:
        return facts
    said = ModulesFacts(running_kernel="", proc_version=f"{driver}, as --driver says")
    return structs.replace(facts, modules=Section(ok=True, data=said))


def _cards(facts: Facts) -> list[Card]:
    """Return the host's cards, one of each compute capability and name."""
    found: list[Card] = []
    for gpu in facts.nvml.data.gpus if facts.nvml.data else []:
        capability, name = value(gpu.compute_capability), value(gpu.name) or "NVIDIA card"
        if capability:
            found.append(Card(name=name, capability=capability, known_by="this host's NVML"))
    devices = facts.pci.data.gpus if facts.pci.data else []
    if not found:
        capability = volta().capability
        found = [
            Card(name=card_name(device), capability=capability, known_by="this host's PCI ids")
            for device in devices
            if is_volta(device)
        ]
    if devices and not found:
        names = ", ".join(card_name(device) for device in devices)
        reason = facts.nvml.error or "NVML does not answer"
        raise CannotLook(
            f"this host has {names}, and its compute capability is not known ({reason}): name it"
            " with --gpu"
        )
    return list(dict.fromkeys(found))
