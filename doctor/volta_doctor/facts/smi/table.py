"""What `nvidia-smi -q -x` says, as NVML's facts: one row per reading, with the element it is in.

NVIDIA promises no stable format. Where a driver renamed an element, the row has both names, the
newer first: clock throttle reasons became event reasons and power readings became GPU power
readings in R535; ECC counters have other names since Ampere. Not in the XML: NVLinks, the
InfoROM's validity, and the addresses of retired pages.
"""

from typing import Any, TypeVar
from xml.etree import ElementTree

import msgspec

from volta_doctor.facts.nvml import GpuFacts, NvmlFacts
from volta_doctor.facts.smi.xml import (
    Element,
    Row,
    Rows,
    clocks,
    compute_capability,
    cuda_version,
    ecc_errors,
    event_reasons,
    mib,
    milliwatts,
    number,
    pci_id,
    processes,
    retired_pages,
    row,
    yes,
)

T = TypeVar("T")

_DRIVER_MODELS = {"WDDM": "wddm", "TCC": "wdm", "MCDM": "mcdm"}

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
