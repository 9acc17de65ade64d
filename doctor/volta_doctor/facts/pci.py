"""The `pci` section: every NVIDIA device that sysfs shows, no lspci needed."""

import re
import struct
from typing import Annotated

import msgspec

from volta_doctor.probe import CannotLook, Probe

DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # display controllers: VGA 0x0300, 3D 0x0302
_SWITCH_CLASS = "0x0680"  # "other bridge", as NCCL's topology code knows an NVSwitch

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ANY_BUS_ID = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE
)

_PLAIN_CONFIG_BYTES, _FIRST_CAPABILITY, _ACS = 64, 0x100, 0x000D
# The bits of the ACS control register from 0, by lspci's names.
ACS_FUNCTIONS = (
    "SrcValid",
    "TransBlk",
    "ReqRedir",
    "CmpltRedir",
    "UpstreamFwd",
    "EgressCtrl",
    "DirectTrans",
)


HexId = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]+$")]


class PciDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device: ids as sysfs writes them (0x1db5), and the driver bound to it.

    `bridges` are the bus ids of the bridges above it, the root port first, None where the host
    does not tell. The link is as the kernel reads it: lanes, and GT/s as text (8.0 GT/s PCIe).
    """

    bus_id: str
    device: HexId
    pci_class: HexId
    driver: str | None = None
    bridges: list[str] | None = None
    numa_node: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    link_speed: str | None = None
    link_speed_max: str | None = None

    @property
    def is_gpu(self) -> bool:
        """A display or 3D device; audio functions and NVSwitches are none."""
        return self.pci_class.startswith(_DISPLAY_CLASS)


class PciBridge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bridge above a GPU.

    `acs` lists the functions of Access Control Services that are on, by lspci's names; None for
    `acs_problem`. A bridge without that capability has none on.
    """

    bus_id: str
    acs: list[str] | None = None
    acs_problem: str = ""


class PciFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The NVIDIA devices, in bus order, and the bridges above the GPUs."""

    devices: list[PciDevice]
    bridges: list[PciBridge] = []

    @property
    def gpus(self) -> list[PciDevice]:
        """The devices that can compute or draw."""
        return [device for device in self.devices if device.is_gpu]

    @property
    def nvswitches(self) -> list[PciDevice]:
        """The NVSwitches that join GPUs, in a DGX-2 for example."""
        return [device for device in self.devices if device.pci_class.startswith(_SWITCH_CLASS)]


def bus_id(text: str) -> str:
    """Return a bus id as sysfs writes it: 00000000:1A:00.0 and PCI:0000:1a:00 are 0000:1a:00.0.

    Anything else comes back as it is.
    """
    match = _ANY_BUS_ID.fullmatch(text)
    if not match:
        return text
    domain, bus, device = (int(part or "0", 16) for part in match.groups()[:3])
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match[4] or 0}"


def parse_acs(config: bytes) -> list[str]:
    """Return the ACS functions that are on in a device's configuration space.

    Source: PCI Express Base Specification, Access Control Services extended capability (id 0x000D).
    Raises CannotLook where the extended part is not there.
    """
    if len(config) <= _PLAIN_CONFIG_BYTES:
        raise CannotLook("only root sees the extended configuration space")
    if len(config) <= _FIRST_CAPABILITY:
        raise CannotLook("the platform gives no access to the extended configuration space")
    offset, seen = _FIRST_CAPABILITY, set[int]()
    while offset >= _FIRST_CAPABILITY and offset not in seen and offset + 8 <= len(config):
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return [name for bit, name in enumerate(ACS_FUNCTIONS) if control >> bit & 1]
        offset = header >> 20
    return []


def read_bridge(probe: Probe, bus: str) -> PciBridge:
    """Read one bridge."""
    try:
        return PciBridge(bus_id=bus, acs=parse_acs(probe.data(f"{DEVICES}/{bus}/config")))
    except CannotLook as reason:
        return PciBridge(bus_id=bus, acs_problem=str(reason))


def read_device(probe: Probe, bus: str) -> PciDevice:
    """Read one device."""
    here = f"{DEVICES}/{bus}"

    def line(name: str) -> str | None:
        return (probe.text_or_none(f"{here}/{name}") or "").strip() or None

    def number(name: str) -> int | None:
        text = line(name)
        return int(text) if text and text.isdigit() else None  # numa_node -1: the BIOS tells none

    driver, place = probe.link(f"{here}/driver"), probe.link(here)
    return PciDevice(
        bus_id=bus,
        device=probe.text(f"{here}/device").strip(),
        pci_class=probe.text(f"{here}/class").strip(),
        driver=driver.rsplit("/", 1)[-1] if driver else None,
        bridges=_BUS_ID.findall(place)[:-1] if place else None,
        numa_node=number("numa_node"),
        link_width=number("current_link_width"),
        link_width_max=number("max_link_width"),
        link_speed=line("current_link_speed"),
        link_speed_max=line("max_link_speed"),
    )


def collect(probe: Probe) -> PciFacts:
    """Read sysfs. Raises CannotLook where it cannot show what cards there are."""
    if not probe.exists(DEVICES):
        raise CannotLook(f"{DEVICES} does not exist")
    devices = [
        read_device(probe, bus)
        for bus in probe.names(DEVICES)
        if probe.text(f"{DEVICES}/{bus}/vendor").strip() == _NVIDIA
    ]
    if not devices and probe.exists("/dev/dxg"):
        raise CannotLook("WSL passes GPUs through /dev/dxg, and PCI does not show them")
    above = {bus: None for device in devices if device.is_gpu for bus in device.bridges or []}
    return PciFacts(devices=devices, bridges=[read_bridge(probe, bus) for bus in above])
