"""`nvidia-smi --query-gpu=… --format=csv`: the fields from its header, or from the command."""

import re
from collections.abc import Iterator

from volta_doctor.logs.parts import Part
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._gpus import CAPABILITY, REASONS, Reading, part
from volta_doctor.logs.text import Line, Text

_COMMAND = re.compile(r"--query-gpu[= ]([\w.,]+)")
_UNIT = re.compile(r"\s*\[[\w%/ ]+\]$")
_LINK = "pci/pci_gpu_link_info"
_SINGLE = "retired_pages/multiple_single_bit_retirement/retired_count"
_DOUBLE = "retired_pages/double_bit_retirement/retired_count"
_MEMORY = ("total", "reserved", "used", "free")
# By the fields of `nvidia-smi --help-query-gpu`.
_PATHS = {
    "index": "index",
    "name": "product_name",
    "gpu_name": "product_name",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "serial": "serial",
    "gpu_serial": "serial",
    "vbios_version": "vbios_version",
    "driver_version": "driver_version",
    "compute_cap": CAPABILITY,
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode",
    "pstate": "performance_state",
    "pci.bus_id": "pci/pci_bus_id",
    "gpu_bus_id": "pci/pci_bus_id",
    "pcie.link.gen.current": f"{_LINK}/pcie_gen/current_link_gen",
    "pcie.link.gen.gpucurrent": f"{_LINK}/pcie_gen/current_link_gen",
    "pcie.link.gen.max": f"{_LINK}/pcie_gen/max_link_gen",
    "pcie.link.width.current": f"{_LINK}/link_widths/current_link_width",
    "pcie.link.width.max": f"{_LINK}/link_widths/max_link_width",
    "ecc.mode.current": "ecc_mode/current_ecc",
    "ecc.mode.pending": "ecc_mode/pending_ecc",
    "ecc.errors.corrected.volatile.total": "ecc_errors/volatile/single_bit/total",
    "ecc.errors.uncorrected.volatile.total": "ecc_errors/volatile/double_bit/total",
    "ecc.errors.corrected.aggregate.total": "ecc_errors/aggregate/single_bit/total",
    "ecc.errors.uncorrected.aggregate.total": "ecc_errors/aggregate/double_bit/total",
    "retired_pages.single_bit_ecc.count": _SINGLE,
    "retired_pages.sbe": _SINGLE,
    "retired_pages.double_bit.count": _DOUBLE,
    "retired_pages.dbe": _DOUBLE,
    "retired_pages.pending": "retired_pages/pending_retirement",
    "temperature.gpu": "temperature/gpu_temp",
    "temperature.memory": "temperature/memory_temp",
    "power.draw": "power_readings/power_draw",
    "power.limit": "power_readings/enforced_power_limit",
    "enforced.power.limit": "power_readings/enforced_power_limit",
    "power.default_limit": "power_readings/default_power_limit",
    "power.min_limit": "power_readings/min_power_limit",
    "power.max_limit": "power_readings/max_power_limit",
    "clocks_throttle_reasons.active": REASONS,
    "clocks_event_reasons.active": REASONS,
    "utilization.gpu": "utilization/gpu_util",
    "utilization.memory": "utilization/memory_util",
    **{f"memory.{name}": f"fb_memory_usage/{name}" for name in _MEMORY},
    **{
        f"{field}.{name}": f"{group}/{clock}_clock"
        for field, group in (
            ("clocks", "clocks"),
            ("clocks.current", "clocks"),
            ("clocks.max", "max_clocks"),
            ("clocks.applications", "applications_clocks"),
            ("clocks.default_applications", "default_applications_clocks"),
        )
        for name, clock in {
            "graphics": "graphics", "gr": "graphics", "sm": "sm", "memory": "mem", "mem": "mem",
            "video": "video",
        }.items()
    },
}  # fmt: skip
_REASONS = re.compile(r"clocks_(event|throttle)_reasons\.(\w+)")


@reader("--query-gpu", "index, ", "name, ", "driver_version", "memory.used", "utilization.gpu")
def csv(text: Text) -> Iterator[Part]:
    """Yield each row as a GPU: by its index where that is a field, else in their order."""
    gpus: dict[int, list[Reading]] = {}
    host: list[Reading] = []
    fields: list[str] = []
    row = 0
    for line in text.lines:
        if match := _COMMAND.search(line.text):
            fields, row = match[1].strip(",").split(","), 0
            continue
        cells = [cell.strip() for cell in line.body.split(",")]
        names = [_UNIT.sub("", cell) for cell in cells]
        if len(names) > 1 and all(name in _PATHS or _REASONS.fullmatch(name) for name in names):
            fields, row = names, 0
        elif names == fields:
            continue
        elif len(cells) == len(fields) and not line.body.startswith("$"):
            readings = list(_row(fields, cells, line))
            index = next((int(r.text) for r in readings if r.path == "index"), row)
            host += [r for r in readings if r.path == "driver_version"]
            own = [r for r in readings if r.path not in ("driver_version", "index")]
            if own:
                gpus.setdefault(index, []).extend(own)
            row += 1
        else:
            fields = []
    if gpus or host:
        yield part(text, gpus, host)


def _row(fields: list[str], cells: list[str], line: Line) -> Iterator[Reading]:
    for field, cell in zip(fields, cells, strict=True):
        if (match := _REASONS.fullmatch(field)) and match[2] != "active":
            name = f"clocks_{match[1]}_reason_{match[2]}"
            yield Reading(f"clocks_{match[1]}_reasons/{name}", cell, line)
            continue
        path = _PATHS.get(field)
        digits = cell.isdigit()
        if path == "driver_version" and not cell[:3].isdigit():
            continue
        if path and (path != "index" or digits):
            yield Reading(path, cell, line)
