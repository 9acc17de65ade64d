"""What `nvidia-smi -q -x` says, as NVML's facts: one row per reading, with the element it is in.

NVIDIA promises no stable format. Where a driver renamed an element, the row has both names, the
newer first: clock throttle reasons became event reasons and power readings became GPU power
readings in R535; ECC counters have other names since Ampere. Not in the XML: NVLinks, the
InfoROM's validity, and the addresses of retired pages.
"""

import re
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar
from xml.etree import ElementTree

import msgspec

from volta_doctor.catalog import compat
from volta_doctor.facts.nvml import (
    GpuFacts,
    GpuProcess,
    NvmlError,
    NvmlFacts,
    Reading,
    RetiredPage,
    value,
)

Element: TypeAlias = ElementTree.Element
Row: TypeAlias = Callable[[Element], Any]
Rows: TypeAlias = dict[str, Row | dict[str, Row]]
T = TypeVar("T")

# What nvidia-smi writes in place of a value (with or without brackets), as NVML's return code.
_ERRORS = {
    "N/A": NvmlError(3, "Not Supported"),
    "Not Supported": NvmlError(3, "Not Supported"),
    "Insufficient Permissions": NvmlError(4, "Insufficient Permissions"),
    "Function Not Found": NvmlError(13, "Function Not Found"),
    "GPU is lost": NvmlError(15, "GPU is lost"),
    "GPU requires reset": NvmlError(16, "GPU requires reset"),
    "GPU requires restart": NvmlError(16, "GPU requires reset"),
    "Unknown Error": NvmlError(999, "Unknown Error"),
}
# Architectures of one compute capability; Ampere and Blackwell have several.
_COMPUTE_CAPABILITY = {"Volta": "7.0", "Turing": "7.5", "Ada Lovelace": "8.9", "Hopper": "9.0"}
_DRIVER_MODELS = {"WDDM": "wddm", "TCC": "wdm", "MCDM": "mcdm"}
_EVENT_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}


def text(place: Element, *paths: str) -> Reading[str]:
    """What the first of these elements says that says more than an error; None without any."""
    refused: Reading[str] = None
    for path in paths:
        said = (place.findtext(path) or "").strip()
        error = _ERRORS.get(said.strip("[]"))
        if said and not error:
            return said
        refused = refused or error
    return refused


def row(convert: Callable[[str], Any], *paths: str) -> Row:
    """A row that reads the first of these elements; what is no such value is NVML's error 999."""

    def read_row(place: Element) -> Reading[Any]:
        said = text(place, *paths)
        if not isinstance(said, str):
            return said
        try:
            return convert(said)
        except (KeyError, ValueError):
            return NvmlError(999, f"nvidia-smi says {said[:40]!r}")

    return read_row


def number(said: str) -> int:
    """The number before its unit: 16x, 37 C, 1530 MHz, 0 %."""
    return int(re.split(r"[x\s]", said, maxsplit=1)[0])


def mib(said: str) -> int:
    """Bytes."""
    return number(said) << 20


def milliwatts(said: str) -> int:
    """44.50 W is 44500."""
    return round(float(said.split()[0]) * 1000)


def yes(said: str) -> bool:
    """Enabled or Yes."""
    return {"Enabled": True, "Yes": True, "Disabled": False, "No": False}[said]


def pci_id(said: str) -> str:
    """0x1DB110DE, as NVML's is written."""
    return f"0x{int(said, 16):08X}"


def cuda_version(said: str) -> int:
    """12.4 is 12040."""
    major, minor = said.split(".")[:2]
    return int(major) * 1000 + int(minor) * 10


def event_reasons(gpu: Element) -> Reading[int]:
    """NVML's bit mask; a reason that this card does not have (N/A) is not active."""
    for word in ("event", "throttle"):
        place = gpu.find(f"clocks_{word}_reasons")
        if place is None:
            continue
        said = {name: text(place, f"clocks_{word}_reason_{name}") for name in _EVENT_REASONS}
        errors = [reason for reason in said.values() if isinstance(reason, NvmlError)]
        untold = next((error for error in errors if error != _ERRORS["N/A"]), None)
        if untold or not any(isinstance(reason, str) for reason in said.values()):
            return untold or next(iter(errors), None)
        return sum(bit for name, bit in _EVENT_REASONS.items() if said[name] == "Active")
    return None


def ecc_errors(counter: str, bits: str, kind: str) -> Row:
    """Volta's total, or the sum of the counters that Ampere and newer have instead."""
    total = row(int, f"ecc_errors/{counter}/{bits}_bit/total")

    def errors(gpu: Element) -> Reading[int]:
        place = gpu.find(f"ecc_errors/{counter}")
        if place is None or place.find(f"{bits}_bit") is not None:
            told: Reading[int] = total(gpu)
            return told
        found: list[Reading[int]] = [
            row(int, part.tag)(place)
            for part in place
            if re.match(rf"[sd]ram_{kind}(_parity|_secded)?$", part.tag)
        ]
        counts = [count for count in found if isinstance(count, int)]
        if len(counts) < len(found):
            return next(count for count in found if not isinstance(count, int))
        return sum(counts) if counts else None

    return errors


def retired_pages(cause: str) -> Row:
    """As many pages as are counted; nvidia-smi does not list their addresses here."""
    count = row(number, f"retired_pages/{cause}_retirement/retired_count")

    def pages(gpu: Element) -> Reading[list[RetiredPage]]:
        retired: Reading[int] = count(gpu)
        return [RetiredPage()] * retired if isinstance(retired, int) else retired

    return pages


def compute_capability(gpu: Element) -> Reading[str]:
    """From the architecture, which drivers name since R470; else from the id of a Volta card."""
    architecture = value(text(gpu, "product_architecture"))
    if architecture:
        return _COMPUTE_CAPABILITY.get(architecture)
    volta = compat().volta
    device = row(pci_id, "pci/pci_device_id")(gpu)
    if isinstance(device, str):
        first, last = int(volta.first_device_id, 16), int(volta.last_device_id, 16)
        if first <= int(device, 16) >> 16 <= last:
            return volta.compute_capability
    return None


def processes(letter: str) -> Row:
    """Processes of type C (compute), G (graphics) or both (C+G)."""

    def listed(gpu: Element) -> Reading[list[GpuProcess]]:
        place = gpu.find("processes")
        if place is None:
            return None
        refused = text(gpu, "processes")
        if isinstance(refused, NvmlError):
            return refused
        return [
            GpuProcess(pid=pid, memory=value(row(mib, "used_memory")(process)))
            for process in place.iter("process_info")
            if letter in (value(text(process, "type")) or "")
            and isinstance(pid := row(int, "pid")(process), int)
        ]

    return listed


def clocks(group: str) -> dict[str, Row]:
    """The four clock domains of a group."""
    names = {"graphics": "graphics", "sm": "sm", "memory": "mem", "video": "video"}
    return {field: row(number, f"{group}/{name}_clock") for field, name in names.items()}


GPU: Rows = {
    "uuid": row(str, "uuid"),
    "name": row(str, "product_name"),
    "serial": row(str, "serial"),
    # Before R515 the board's number was called the GPU's.
    "part_number": row(str, "board_part_number", "gpu_part_number"),
    "vbios": row(str, "vbios_version"),
    "minor_number": row(int, "minor_number"),
    "compute_capability": compute_capability,
    "persistence": row(yes, "persistence_mode"),
    "compute_mode": row(str.lower, "compute_mode"),
    "performance_state": row(lambda said: int(said.removeprefix("P")), "performance_state"),
    "event_reasons": event_reasons,
    "pci": {
        "bus_id": row(str, "pci/pci_bus_id"),
        "device_id": row(pci_id, "pci/pci_device_id"),
        "subsystem_id": row(pci_id, "pci/pci_sub_system_id"),
    },
    "pcie": {
        "generation": row(int, "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
        "generation_max": row(int, "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
        "width": row(number, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        "width_max": row(number, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        "replays": row(int, "pci/replay_counter"),
    },
    "ecc": {
        "current": row(yes, "ecc_mode/current_ecc"),
        "pending": row(yes, "ecc_mode/pending_ecc"),
        "volatile_corrected": ecc_errors("volatile", "single", "correctable"),
        "volatile_uncorrected": ecc_errors("volatile", "double", "uncorrectable"),
        "aggregate_corrected": ecc_errors("aggregate", "single", "correctable"),
        "aggregate_uncorrected": ecc_errors("aggregate", "double", "uncorrectable"),
    },
    "retired_pages": {
        "single_bit": retired_pages("multiple_single_bit"),
        "double_bit": retired_pages("double_bit"),
        "pending": row(yes, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
    },
    "inforom": {
        "image": row(str, "inforom_version/img_version"),
        "oem": row(str, "inforom_version/oem_object"),
        "ecc": row(str, "inforom_version/ecc_object"),
        "power": row(str, "inforom_version/pwr_object"),
    },
    "driver_model": {
        "current": row(_DRIVER_MODELS.__getitem__, "driver_model/current_dm"),
        "pending": row(_DRIVER_MODELS.__getitem__, "driver_model/pending_dm"),
    },
    "power": {
        "draw_mw": row(
            milliwatts,
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/instant_power_draw",
            "power_readings/power_draw",
        ),
        "limit_mw": row(
            milliwatts, "gpu_power_readings/requested_power_limit", "power_readings/power_limit"
        ),
        "enforced_mw": row(
            milliwatts,
            "gpu_power_readings/current_power_limit",
            "power_readings/enforced_power_limit",
        ),
        "default_mw": row(
            milliwatts,
            "gpu_power_readings/default_power_limit",
            "power_readings/default_power_limit",
        ),
        "min_mw": row(
            milliwatts, "gpu_power_readings/min_power_limit", "power_readings/min_power_limit"
        ),
        "max_mw": row(
            milliwatts, "gpu_power_readings/max_power_limit", "power_readings/max_power_limit"
        ),
    },
    "temperature": {
        "gpu": row(number, "temperature/gpu_temp"),
        "memory": row(number, "temperature/memory_temp"),
        "shutdown": row(number, "temperature/gpu_temp_max_threshold"),
        "slowdown": row(number, "temperature/gpu_temp_slow_threshold"),
        "gpu_max": row(number, "temperature/gpu_temp_max_gpu_threshold"),
        "memory_max": row(number, "temperature/gpu_temp_max_mem_threshold"),
    },
    "clocks": clocks("clocks"),
    "clocks_max": clocks("max_clocks"),
    "application_clocks": {
        "graphics": row(number, "applications_clocks/graphics_clock"),
        "memory": row(number, "applications_clocks/mem_clock"),
        "default_graphics": row(number, "default_applications_clocks/graphics_clock"),
        "default_memory": row(number, "default_applications_clocks/mem_clock"),
    },
    "memory": {
        name: row(mib, f"fb_memory_usage/{name}") for name in ("total", "reserved", "used", "free")
    },
    "utilization": {
        "gpu": row(number, "utilization/gpu_util"),
        "memory": row(number, "utilization/memory_util"),
    },
    "compute_processes": processes("C"),
    "graphics_processes": processes("G"),
}


def read(facts: type[T], rows: Rows | dict[str, Row], place: Element, **known: Any) -> T:
    """Fill a group of facts by its rows."""
    groups = {field.name: field.type for field in msgspec.structs.fields(facts)}  # type: ignore[arg-type]
    for name, found in rows.items():
        known[name] = read(groups[name], found, place) if isinstance(found, dict) else found(place)
    return facts(**known)


def root(output: str) -> Element | None:
    """The document in nvidia-smi's output, which may have warnings around it; None without one."""
    start, end = output.find("<nvidia_smi_log"), output.rfind("</nvidia_smi_log>")
    if start < 0 or end < 0:
        return None
    try:
        # Cut out like this it has no DTD, so no entity of its own either.
        return ElementTree.fromstring(output[start : end + len("</nvidia_smi_log>")])  # noqa: S314
    except ElementTree.ParseError:
        return None


def facts_of(log: Element) -> NvmlFacts:
    """All that the document says."""
    return NvmlFacts(
        source="nvidia-smi -q -x",
        driver_version=row(str, "driver_version")(log),
        cuda_version=row(cuda_version, "cuda_version")(log),
        device_count=row(int, "attached_gpus")(log),
        gpus=[read(GpuFacts, GPU, gpu, index=index) for index, gpu in enumerate(log.iter("gpu"))],
    )
