"""The profile: what kind of host this is, and so which checks make sense on it."""

from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from volta_doctor.catalog import compat
from volta_doctor.facts.expect import Expect
from volta_doctor.facts.model import Facts
from volta_doctor.facts.pci import DEVICES, PciDevice, PciFacts
from volta_doctor.files import read

SECTIONS = ("host", "pci", "modules", "release")
SITE = Path("/etc/volta-doctor/profiles")
_SUFFIX = ".yaml"

Gpu = Literal["none", "nvidia", "volta"]


class ProfileError(ValueError):
    """A profile that cannot be had; the message names the file, the field and the fault."""


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


class Way(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to recognise a host; profiles/README.md tells when each condition holds."""

    product_names: list[str] = []
    devices: list[str] = []
    gpus: int | None = None
    nvswitches: int | None = None


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of profiles/ or of a site; README.md there tells what a key means."""

    title: str
    gpu: Gpu
    source: str = "the site"
    detect: list[Way] = []
    expect: Expect | None = None


def names(site: Path = SITE) -> list[str]:
    """Return the names that --profile takes, without those of files elsewhere."""
    return sorted({*_built_in(), *_of_site(site)})


def load(name: str, site: Path = SITE) -> Definition:
    """Return a profile by its name, or by the path of a file. Raises ProfileError."""
    if "/" in name or name.endswith(_SUFFIX):
        return _read(Path(name))
    paths = _built_in() | _of_site(site)
    if name not in paths:
        known = ", ".join(names(site))
        raise ProfileError(f"no profile {name!r}; there are {known}, and files by their path")
    return _read(paths[name])


def detect(facts: Facts, forced: str | None = None, site: Path | None = SITE) -> Profile:
    """Return the forced profile (a name or a path), else the one that fits this host best.

    Without a `site` none of a site's is detected, though one may be forced. Raises ProfileError for
    a forced one that does not exist and for a faulty file of the site.
    """
    found = _detect(facts, site)
    if forced is None:
        return found
    definition = load(forced, site or SITE)
    return Profile(
        name=_name(forced),
        gpu=definition.gpu,
        reason=f"forced by --profile; detected: {found.name}, {found.reason}",
        cards=found.cards,
        expect=definition.expect,
        forced=True,
    )


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


def _detect(facts: Facts, site: Path | None) -> Profile:
    pci = facts.pci.data
    product = facts.host.data.product_name if facts.host.data else ""
    gpu, reason = _kind(facts)
    cards = [card_name(device) for device in pci.gpus] if pci else []
    best: tuple[tuple[bool, bool, int], str, Definition, Way] | None = None
    paths = _built_in() | (_of_site(site) if site else {})
    for path in paths.values():
        definition = _read(path)
        for way in definition.detect:
            if _holds(way, definition, gpu, pci, product):
                order = (path.parent == site, bool(way.product_names), _conditions(way))
                if best is None or order > best[0]:
                    best = (order, path.stem, definition, way)
    if best is None:
        return Profile(name="unknown", gpu="unknown", reason=reason, cards=cards)
    (of_site, *_), name, definition, way = best
    if definition.gpu == "nvidia":
        reason += ": no Volta card, and the rules are for Volta"
    signs = [f"the DMI product name {product}"] if way.product_names else []
    signs += [f"{way.gpus} GPUs"] if way.gpus is not None else []
    signs += [f"{way.nvswitches} NVSwitches"] if way.nvswitches is not None else []
    signs += [f"{site}/{name}{_SUFFIX}"] if of_site else []
    if signs:
        reason += f"; recognised by {', '.join(signs)}"
    return Profile(
        name=name, gpu=definition.gpu, reason=reason, cards=cards, expect=definition.expect
    )


def _kind(facts: Facts) -> tuple[Gpu | None, str]:
    """Return which cards the host has, None where it does not tell, and what shows it."""
    pci = facts.pci.data
    if pci is None:
        return None, f"PCI devices could not be read: {facts.pci.error}"
    cards = [card_name(device) for device in pci.gpus]
    if cards:
        volta = any(is_volta(device) for device in pci.gpus)
        counts = ", ".join(f"{cards.count(card)} x {card}" for card in dict.fromkeys(cards))
        return "volta" if volta else "nvidia", counts
    nothing = f"no NVIDIA card on this host (looked in {DEVICES})"
    # A card that has fallen off the bus must not turn into a host that never had one.
    release, modules = facts.release.data, facts.modules.data
    if release and release.manifest.profile == "v100":
        return "volta", f"the installed release is for v100, yet {nothing}"
    if modules and modules.proc_version:  # the module does not stay loaded where it finds no card
        return "volta", f"the NVIDIA module is loaded, yet {nothing}"
    return "none", nothing


def _holds(
    way: Way, definition: Definition, gpu: Gpu | None, pci: PciFacts | None, product: str
) -> bool:
    by_name = any(fnmatchcase(product, pattern) for pattern in way.product_names)
    if way.product_names and not by_name:
        return False
    if not by_name and definition.gpu != gpu:
        return False
    if pci is None:
        return by_name and not (way.devices or way.gpus or way.nvswitches)
    ids = [device.device.removeprefix("0x") for device in pci.gpus]
    return (
        (not way.devices or (ids != [] and set(ids) <= set(way.devices)))
        and way.gpus in (None, len(ids))
        and way.nvswitches in (None, len(pci.nvswitches))
    )


def _conditions(way: Way) -> int:
    return sum(getattr(way, name) not in (None, []) for name in Way.__struct_fields__)


def _built_in() -> dict[str, Path]:
    here = Path(str(files("volta_doctor") / "profiles"))
    return {path.stem: path for path in sorted(here.glob(f"*{_SUFFIX}"))}


def _of_site(site: Path) -> dict[str, Path]:
    try:
        paths = sorted(site.iterdir()) if site.is_dir() else []
    except OSError as error:
        raise ProfileError(f"{site}: {error.strerror}") from error
    return {path.stem: path for path in paths if path.suffix == _SUFFIX}


def _read(path: Path) -> Definition:
    import msgspec.yaml

    try:
        return msgspec.yaml.decode(read(path), type=Definition)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        raise ProfileError(f"{path}: not a profile: {words}") from error


def _name(name_or_path: str) -> str:
    return Path(name_or_path).name.removesuffix(_SUFFIX)
