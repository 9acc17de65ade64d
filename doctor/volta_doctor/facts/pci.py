"""The `pci` section: every NVIDIA device that sysfs shows, no lspci needed."""

import msgspec

from volta_doctor.probe import CannotLook, Probe

DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # display controllers: VGA 0x0300, 3D 0x0302
_SWITCH_CLASS = "0x0680"  # "other bridge", as NCCL's topology code knows an NVSwitch


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device: ids as sysfs writes them (0x1db5), and the driver bound to it."""

    bus_id: str
    device: str
    pci_class: str
    driver: str | None = None

    @property
    def is_gpu(self) -> bool:
        """A display or 3D device; audio functions and NVSwitches are none."""
        return self.pci_class.startswith(_DISPLAY_CLASS)


class PciFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The NVIDIA devices, in bus order."""

    devices: list[PciDevice]

    @property
    def gpus(self) -> list[PciDevice]:
        """The devices that can compute or draw."""
        return [device for device in self.devices if device.is_gpu]

    @property
    def nvswitches(self) -> list[PciDevice]:
        """The NVSwitches that join GPUs, in a DGX-2 for example."""
        return [device for device in self.devices if device.pci_class.startswith(_SWITCH_CLASS)]


def collect(probe: Probe) -> PciFacts:
    """Read sysfs. Raises CannotLook where it cannot show what cards there are."""
    if not probe.exists(DEVICES):
        raise CannotLook(f"{DEVICES} does not exist")
    devices = []
    for bus_id in probe.names(DEVICES):
        here = f"{DEVICES}/{bus_id}"
        if probe.text(f"{here}/vendor").strip() != _NVIDIA:
            continue
        driver = probe.link(f"{here}/driver")
        devices.append(
            PciDevice(
                bus_id=bus_id,
                device=probe.text(f"{here}/device").strip(),
                pci_class=probe.text(f"{here}/class").strip(),
                driver=driver.rsplit("/", 1)[-1] if driver else None,
            )
        )
    if not devices and probe.exists("/dev/dxg"):
        raise CannotLook("WSL passes GPUs through /dev/dxg, and PCI does not show them")
    return PciFacts(devices=devices)
