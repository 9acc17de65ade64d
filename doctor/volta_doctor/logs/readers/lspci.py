"""`lspci -nn`, with or without -k: NVIDIA's devices and the drivers that hold them."""

import re
from collections.abc import Iterator
from typing import Any

from volta_doctor.facts.model import Facts
from volta_doctor.facts.modules import ModulesFacts
from volta_doctor.facts.pci import PciDevice, PciFacts, bus_id
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Text

_BUS = r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_DEVICE = re.compile(
    rf"({_BUS}) .*?\[(0[36]\d\d)\]: NVIDIA .*\[10de:([0-9a-f]{{4}})\]", re.IGNORECASE
)
_ANY = re.compile(rf"{_BUS} ", re.IGNORECASE)
_DRIVER = re.compile(r"^Kernel driver in use: (\S+)")


@reader("[10de:", after=20)
def lspci(text: Text) -> Iterator[Part]:
    """Yield the devices; one without a line for its driver may have one."""
    devices: list[dict[str, Any]] = []
    seen: list[Seen] = []
    inside = False
    for line in text.lines:
        body = line.body
        if match := _DEVICE.match(body):
            bus, inside = bus_id(match[1]), True
            device, pci_class = f"0x{match[3].lower()}", f"0x{match[2]}00"
            devices.append({"bus_id": bus, "device": device, "pci_class": pci_class})
            seen.append(Seen("pci", bus, text.evidence(line), bus))
        elif _ANY.match(body):
            inside = False
        elif inside and (match := _DRIVER.match(body)):
            devices[-1]["driver"] = match[1]
            seen.append(Seen("pci", match[1], text.evidence(line), devices[-1]["bus_id"]))
    if devices:
        facts = Facts(
            pci=section(PciFacts(devices=[PciDevice(**fields) for fields in devices])),
            modules=section(ModulesFacts(running_kernel="", loaded=_loaded(devices))),
        )
        judges = ("nouveau",) if all("driver" in fields for fields in devices) else ()
        yield Part(facts, judges, seen)


def _loaded(devices: list[dict[str, Any]]) -> list[str]:
    """Return the modules of the drivers in use, as `modules` records them."""
    drivers = sorted({fields.get("driver", "") for fields in devices})
    return [driver for driver in drivers if driver in ("nvidia", "nouveau")]
