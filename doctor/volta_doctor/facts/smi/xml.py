"""Reads elements of `nvidia-smi -q -x`: values as NVML has them, refusals as `NvmlError`.

Here are the readings that need more than a conversion; `table` says which are made.
"""

import re
from collections.abc import Callable
from typing import Any, TypeAlias
from xml.etree import ElementTree

from volta_doctor.catalog import compat
from volta_doctor.facts.nvml import GpuProcess, NvmlError, Reading, RetiredPage, value

Element: TypeAlias = ElementTree.Element
Row: TypeAlias = Callable[[Element], Any]
Rows: TypeAlias = dict[str, Row | dict[str, Row]]

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
