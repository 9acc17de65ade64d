"""The profile: what kind of host this is, and so which checks make sense on it."""

from typing import Literal

import msgspec

from volta_doctor.catalog import compat
from volta_doctor.facts.expect import Expect
from volta_doctor.facts.model import Facts
from volta_doctor.facts.pci import DEVICES, PciDevice

SECTIONS = ("pci", "modules", "release")


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The profile and why it was chosen.

    `gpu` says which rules make sense: `none` without an NVIDIA card, `volta` with a Volta card,
    `nvidia` with other cards only, `unknown` where the host did not tell. `expect` is what a host
    of this name has, None where nothing is known of it. `cards` names each card; `forced` means
    that --profile chose.
    """

    name: str
    gpu: Literal["none", "nvidia", "volta", "unknown"]
    reason: str
    cards: list[str] = []
    expect: Expect | None = None
    forced: bool = False


def is_volta(device: PciDevice) -> bool:
    """Say whether a PCI device id lies in NVIDIA's block for Volta."""
    volta = compat().volta
    first, last = int(volta.first_device_id, 16), int(volta.last_device_id, 16)
    return first <= int(device.device, 16) <= last


def card_name(device: PciDevice) -> str:
    """Return a card's name where the catalogue knows it, and its PCI id."""
    device_id = device.device.removeprefix("0x")
    name = compat().volta.names.get(device_id, "Volta card" if is_volta(device) else "NVIDIA card")
    return f"{name} (10de:{device_id})"


def detect(facts: Facts, forced: str | None = None) -> Profile:
    """Choose the profile from what PCI shows; other signs of a card outweigh an empty bus."""
    found = _from_pci(facts)
    if forced is None:
        return found
    return Profile(
        name=forced,
        gpu="volta" if forced == "v100" else "none",
        reason=f"forced by --profile; detected: {found.name}, {found.reason}",
        cards=found.cards,
        forced=True,
    )


def _from_pci(facts: Facts) -> Profile:
    pci = facts.pci.data
    if pci is None:
        reason = f"PCI devices could not be read: {facts.pci.error}"
        return Profile(name="unknown", gpu="unknown", reason=reason)
    cards = [card_name(device) for device in pci.gpus]
    if any(is_volta(device) for device in pci.gpus):
        return Profile(name="v100", gpu="volta", reason=_count(cards), cards=cards)
    if cards:
        reason = f"{_count(cards)}: no Volta card, and the rules are for Volta"
        return Profile(name="nvidia", gpu="nvidia", reason=reason, cards=cards)
    nothing = f"no NVIDIA card on this host (looked in {DEVICES})"
    # A card that has fallen off the bus must not turn into a host that never had one.
    release, modules = facts.release.data, facts.modules.data
    missed = None
    if release and release.manifest.profile == "v100":
        missed = "the installed release is for v100"
    elif modules and modules.proc_version:  # the module does not stay loaded where it finds no card
        missed = "the NVIDIA module is loaded"
    if missed:
        return Profile(name="v100", gpu="volta", reason=f"{missed}, yet {nothing}")
    return Profile(name="cpu", gpu="none", reason=nothing)


def _count(cards: list[str]) -> str:
    return ", ".join(f"{cards.count(card)} x {card}" for card in dict.fromkeys(cards))
