"""What `nvidia-smi -q -x` of branch R580 prints on a fake host: only what is in the facts."""

from typing import Any
from xml.etree import ElementTree

_EVENT_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "display_clocks_setting": 0x100,
}
_ERRORS = {3: "N/A", 15: "[GPU is lost]", 16: "[GPU requires reset]"}
_DRIVER_MODELS = {"wddm": "WDDM", "wdm": "TCC", "mcdm": "MCDM"}

# The element of each reading, and how it is written.
_TEXT = {
    "product_name": "name",
    "serial": "serial",
    "uuid": "uuid",
    "minor_number": "minor_number",
    "vbios_version": "vbios",
    "board_part_number": "part_number",
    "inforom_version/img_version": "inforom.image",
    "inforom_version/oem_object": "inforom.oem",
    "inforom_version/ecc_object": "inforom.ecc",
    "inforom_version/pwr_object": "inforom.power",
    "pci/pci_bus_id": "pci.bus_id",
    "pci/pci_device_id": "pci.device_id",
    "pci/pci_sub_system_id": "pci.subsystem_id",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie.generation_max",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pcie.generation",
    "pci/replay_counter": "pcie.replays",
    "ecc_errors/volatile/single_bit/total": "ecc.volatile_corrected",
    "ecc_errors/volatile/double_bit/total": "ecc.volatile_uncorrected",
    "ecc_errors/aggregate/single_bit/total": "ecc.aggregate_corrected",
    "ecc_errors/aggregate/double_bit/total": "ecc.aggregate_uncorrected",
}
_UNIT = {
    "pci/pci_gpu_link_info/link_widths/max_link_width": ("pcie.width_max", "x"),
    "pci/pci_gpu_link_info/link_widths/current_link_width": ("pcie.width", "x"),
    "utilization/gpu_util": ("utilization.gpu", " %"),
    "utilization/memory_util": ("utilization.memory", " %"),
    "temperature/gpu_temp": ("temperature.gpu", " C"),
    "temperature/gpu_temp_max_threshold": ("temperature.shutdown", " C"),
    "temperature/gpu_temp_slow_threshold": ("temperature.slowdown", " C"),
    "temperature/gpu_temp_max_gpu_threshold": ("temperature.gpu_max", " C"),
    "temperature/memory_temp": ("temperature.memory", " C"),
    "temperature/gpu_temp_max_mem_threshold": ("temperature.memory_max", " C"),
    "applications_clocks/graphics_clock": ("application_clocks.graphics", " MHz"),
    "applications_clocks/mem_clock": ("application_clocks.memory", " MHz"),
    "default_applications_clocks/graphics_clock": ("application_clocks.default_graphics", " MHz"),
    "default_applications_clocks/mem_clock": ("application_clocks.default_memory", " MHz"),
    **{
        f"{group}/{element}_clock": (f"{facts}.{domain}", " MHz")
        for group, facts in (("clocks", "clocks"), ("max_clocks", "clocks_max"))
        for element, domain in (
            ("graphics", "graphics"),
            ("sm", "sm"),
            ("mem", "memory"),
            ("video", "video"),
        )
    },
}
_WATTS = {
    "gpu_power_readings/instant_power_draw": "power.draw_mw",
    "gpu_power_readings/current_power_limit": "power.enforced_mw",
    "gpu_power_readings/requested_power_limit": "power.limit_mw",
    "gpu_power_readings/default_power_limit": "power.default_mw",
    "gpu_power_readings/min_power_limit": "power.min_mw",
    "gpu_power_readings/max_power_limit": "power.max_mw",
}


def to_xml(nvml: dict[str, Any]) -> str:
    """The document for an NVML section."""
    log = ElementTree.Element("nvidia_smi_log")
    put(log, "driver_version", nvml["driver_version"])
    put(log, "cuda_version", f"{nvml['cuda_version'] // 1000}.{nvml['cuda_version'] % 1000 // 10}")
    put(log, "attached_gpus", nvml["device_count"])
    for facts in nvml["gpus"]:
        if "pci" in facts:
            gpu = ElementTree.SubElement(log, "gpu", id=facts["pci"]["bus_id"])
            _gpu(gpu, facts)
    ElementTree.indent(log, "\t")
    body = ElementTree.tostring(log, "unicode", short_empty_elements=False)
    return (
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n{body}\n'
    )


def _gpu(gpu: ElementTree.Element, facts: dict[str, Any]) -> None:
    for path, name in _TEXT.items():
        put(gpu, path, _said(facts, name, str))
    for path, (name, unit) in _UNIT.items():
        put(gpu, path, _said(facts, name, lambda value, unit=unit: f"{value}{unit}"))
    for path, name in _WATTS.items():
        put(gpu, path, _said(facts, name, lambda value: f"{value / 1000:.2f} W"))
    for path, name in (
        ("persistence_mode", "persistence"),
        ("ecc_mode/current_ecc", "ecc.current"),
        ("ecc_mode/pending_ecc", "ecc.pending"),
    ):
        put(gpu, path, _said(facts, name, lambda on: "Enabled" if on else "Disabled"))
    for path, name in (("current", "current"), ("pending", "pending")):
        said = _said(facts, f"driver_model.{name}", lambda model: _DRIVER_MODELS[model])
        put(gpu, f"driver_model/{path}_dm", said)
    put(gpu, "product_architecture", "Volta")
    put(gpu, "performance_state", _said(facts, "performance_state", lambda state: f"P{state}"))
    put(
        gpu,
        "compute_mode",
        _said(facts, "compute_mode", lambda mode: mode.replace("_", " ").title()),
    )
    for name, bit in _EVENT_REASONS.items():
        said = _said(
            facts, "event_reasons", lambda r, bit=bit: "Active" if r & bit else "Not Active"
        )
        put(gpu, f"clocks_event_reasons/clocks_event_reason_{name}", said)
    for element, name in (("multiple_single_bit", "single_bit"), ("double_bit", "double_bit")):
        said = _said(facts, f"retired_pages.{name}", lambda pages: str(len(pages)))
        put(gpu, f"retired_pages/{element}_retirement/retired_count", said)
    pending = _said(facts, "retired_pages.pending", lambda on: "Yes" if on else "No")
    put(gpu, "retired_pages/pending_retirement", pending)
    put(gpu, "remapped_rows", "N/A")
    for name in ("total", "reserved", "used", "free"):
        said = _said(facts, f"memory.{name}", lambda size: f"{size >> 20} MiB")
        put(gpu, f"fb_memory_usage/{name}", said)
    put(gpu, "processes", "")
    for letter, name in (("C", "compute_processes"), ("G", "graphics_processes")):
        for process in facts[name] if isinstance(facts.get(name), list) else []:
            info = ElementTree.SubElement(gpu.find("processes"), "process_info")
            put(info, "pid", process["pid"])
            put(info, "type", letter)
            put(info, "used_memory", _said(process, "memory", lambda size: f"{size >> 20} MiB"))


def put(place: ElementTree.Element, path: str, text: object) -> None:
    """Write text into an element, making those on the way; nothing for None."""
    if text is None:
        return
    for name in path.split("/"):
        found = place.find(name)
        place = ElementTree.SubElement(place, name) if found is None else found
    place.text = str(text)


def _said(facts: dict[str, Any], dotted: str, write: Any) -> str | None:
    value: Any = facts
    for step in dotted.split("."):
        value = value.get(step, {"error": 3}) if isinstance(value, dict) else {"error": 3}
    if isinstance(value, dict) and "error" in value:
        return _ERRORS.get(value["error"], "[Unknown Error]")
    return write(value)
