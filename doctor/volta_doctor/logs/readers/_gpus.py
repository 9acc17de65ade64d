"""What the readers of nvidia-smi's outputs share: readings of GPUs, by the elements of its XML."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec

from volta_doctor.facts.model import Facts
from volta_doctor.facts.modules import ModulesFacts
from volta_doctor.facts.nvml import GpuFacts, NvmlFacts
from volta_doctor.facts.pci import bus_id
from volta_doctor.facts.smi.table import GPU, read
from volta_doctor.facts.smi.xml import Element, cuda_version, row
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.text import Line, Text

# Checks of one GPU: a reading that a text does not hold is no reading, and so no verdict.
PER_GPU = (
    "persistence", "compute-mode", "ecc-mode", "ecc-dbe-vol", "ecc-dbe-agg", "ecc-sbe",
    "retired-total", "retired-trend", "retired-pending", "retired-full", "pcie-width", "pcie-gen",
    "pcie-replay", "temp-gpu", "temp-mem", "throttle-hw", "throttle-sw", "power-limit",
    "app-clocks", "nvl-count", "nvl-speed", "nvl-crc", "nvl-replay", "nvl-recovery", "vbios-mix",
)  # fmt: skip
# A row of the processes in nvidia-smi's table, newer and older.
PROCESS = re.compile(
    r"\|\s*(?P<index>\d{1,2})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d+)\s+"
    r"(?P<type>C|G|C\+G|M|M\+C)\s+(?P<name>\S.{0,200}?)\s+(?P<memory>\d+\s?MiB|N/A)\s*\|"
)
CAPABILITY, REASONS = "compute_cap", "event_reasons"  # readings that are no elements of the XML

_LOST = ("GPU is lost", "GPU requires reset", "GPU requires restart")

# By which words findings speak of an element.
_WORDS = (
    (r"persistence_mode", "persistence mode"),
    (r"compute_mode", "compute mode"),
    (r"ecc_mode/", ", pending "),
    (r"ecc_errors/volatile/(?:double_bit/total|.*_uncorrectable)", "volatile uncorrected"),
    (r"ecc_errors/volatile/(?:single_bit/total|.*_correctable)", "volatile corrected"),
    (r"ecc_errors/aggregate/(?:double_bit/total|.*_uncorrectable)", "aggregate uncorrected"),
    (r"retired_pages/", "retired pages"),
    (r"pci/pci_gpu_link_info/link_widths/", "PCIe width"),
    (r"pci/pci_gpu_link_info/pcie_gen/", "PCIe generation"),
    (r"pci/replay_counter", "PCIe replay"),
    (r"temperature/(?:memory_temp|gpu_temp_max_mem_threshold)", "memory "),
    (r"temperature/", "slowdown at"),
    (r"clocks_\w+_reasons/|event_reasons", "clock event reasons"),
    (r".*power_readings/.*limit", "enforced "),
    (r"applications_clocks/", "application clock"),
    (r"max_clocks/graphics", "application clock"),
    (r"utilization/gpu_util", "busy"),
    (r"vbios_version", "VBIOS"),
)


class Reading(NamedTuple):
    """What stands under an element of the XML, and on which line.

    `process_info#2` in a path is the third element of that name.
    """

    path: str
    text: str
    line: Line


def part(
    text: Text,
    gpus: Mapping[int, Sequence[Reading]],
    host: Iterable[Reading] = (),
    judges: Collection[str] = PER_GPU,
) -> Part:
    """Return the facts in the readings of GPUs by index, and of the `host`.

    An index below 0 is not known.
    """
    read_gpus = [_gpu(index, readings) for index, readings in gpus.items()]
    names = {index: _name(index, readings) for index, readings in gpus.items()}
    of_host = {reading.path: reading for reading in host}
    log = _element(of_host.values())
    nvml = NvmlFacts(
        source="nvidia-smi",
        driver_version=row(str, "driver_version")(log),
        cuda_version=row(cuda_version, "cuda_version")(log),
        gpus=read_gpus,
    )
    seen = [
        Seen("nvml", words, text.evidence(reading.line), names[index])
        for index, readings in gpus.items()
        for reading in readings
        if (words := _words(reading))
    ]
    lost = [
        Seen("nvml", "error", text.evidence(reading.line), names[index])
        for index, readings in gpus.items()
        for reading in readings
        if reading.text.strip("[]") in _LOST
    ]
    if lost:
        seen, judges = [*lost, *seen], [*judges, "gpu-lost"]
    driver = of_host.get("driver_version")
    if driver is None:
        return Part(Facts(nvml=section(nvml)), judges, seen)
    modules, shown = loaded(text, driver.text, driver.line)
    facts = Facts(nvml=section(nvml), modules=section(modules))
    return Part(facts, [*judges, "driver-branch", "driver-cuda"], [*seen, shown])


def loaded(text: Text, version: str, line: Line) -> tuple[ModulesFacts, Seen]:
    """Return that a driver of this version is loaded, and where it stands."""
    facts = ModulesFacts(running_kernel="", proc_version=f"Driver Version: {version}")
    return facts, Seen("modules", version, text.evidence(line))


def _name(index: int, readings: Iterable[Reading]) -> str:
    """Return a GPU's bus id where it is told, else its index."""
    buses = (bus_id(reading.text) for reading in readings if reading.path == "pci/pci_bus_id")
    return next(buses, f"GPU {index}")


def _gpu(index: int, readings: Iterable[Reading]) -> GpuFacts:
    known = {reading.path: reading.text for reading in readings}
    gpu = read(GpuFacts, GPU, _element(readings), index=index)
    if re.fullmatch(r"\d+\.\d", known.get(CAPABILITY, "")):
        gpu = msgspec.structs.replace(gpu, compute_capability=known[CAPABILITY])
    if re.fullmatch(r"0x[0-9a-fA-F]+", known.get(REASONS, "")):
        gpu = msgspec.structs.replace(gpu, event_reasons=int(known[REASONS], 16))
    return gpu


def _element(readings: Iterable[Reading]) -> Element:
    places = {"": ElementTree.Element("gpu")}
    for reading in readings:
        at = ""
        for name in reading.path.split("/"):
            above, at = places[at], f"{at}/{name}"
            if at not in places:
                places[at] = ElementTree.SubElement(above, name.partition("#")[0])
        places[at].text = reading.text
    return places[""]


def _words(reading: Reading) -> str:
    if re.match(r"clocks_\w+_reasons/", reading.path) and reading.text != "Active":
        return ""
    return next((words for path, words in _WORDS if re.match(path, reading.path)), "")
