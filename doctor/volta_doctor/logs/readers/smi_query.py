"""`nvidia-smi -q`, as text or XML (-x), whole or an excerpt such as `-q -d ECC` prints.

Where a line stands is told by the names of headings and not by its indentation, which a paste may
have lost. A driver renames things: each name that it has had is a row. Without a line that names
the GPU what follows is taken as that of GPU 0.
"""

import re
from collections.abc import Iterator

from volta_doctor.logs.parts import Part
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._gpus import Reading, part
from volta_doctor.logs.text import Text

_GPU = re.compile(r"GPU ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$", re.IGNORECASE)
_VALUE = re.compile(r"([A-Za-z][\w .()/-]*?)\s*[:\uff1a](?!\S*://)\s*(\S.*)?$")
_ATTACHED = re.compile(r"Attached GPUs\s*:\s*(\d{1,2})\b|<attached_gpus>(\d{1,2})<")
_BUS = "pci/pci_bus_id"
_XML_GPU = re.compile(r"<gpu id=\"([^\"]*)\"")
_XML_VALUE = re.compile(r"<(\w+)(?:\s[^>]*)?>([^<]*)</\1>")
_XML_OPEN = re.compile(r"<(\w+)(?:\s[^>]*)?>$")
_XML_CLOSE = re.compile(r"</(\w+)>$")

# Headings below others; any other heading begins a section.
_BELOW = {
    "volatile": 1, "aggregate": 1, "single bit": 2, "double bit": 2,
    "gpu link info": 1, "pcie generation": 2, "link width": 2,
}  # fmt: skip
_SECTIONS = {
    "clocks throttle reasons": "clocks_throttle_reasons",
    "clocks event reasons": "clocks_event_reasons",
    "retired pages": "retired_pages",
    "ecc mode": "ecc_mode",
    "ecc errors": "ecc_errors",
    "pci": "pci",
    "fb memory usage": "fb_memory_usage",
    "utilization": "utilization",
    "temperature": "temperature",
    "power readings": "power_readings",
    "gpu power readings": "gpu_power_readings",
    "clocks": "clocks",
    "applications clocks": "applications_clocks",
    "default applications clocks": "default_applications_clocks",
    "max clocks": "max_clocks",
    "inforom version": "inforom_version",
    "driver model": "driver_model",
    "processes": "processes",
}
_HOST = {"driver version": "driver_version", "cuda version": "cuda_version"}
_OF_GPU = {
    "product name": "product_name",
    "product architecture": "product_architecture",
    "serial number": "serial",
    "gpu uuid": "uuid",
    "minor number": "minor_number",
    "vbios version": "vbios_version",
    "board part number": "board_part_number",
    "gpu part number": "gpu_part_number",
    "persistence mode": "persistence_mode",
    "performance state": "performance_state",
    "compute mode": "compute_mode",
    "replays since reset": "pci/replay_counter",
}
_ALONE = ("driver version", "persistence mode", "performance state", "compute mode")
_REASONS = {
    "idle": "gpu_idle",
    "display clock setting": "display_clocks_setting",
}
_LINK = "pci/pci_gpu_link_info"
_PATHS = {
    "retired_pages/single bit ecc": "retired_pages/multiple_single_bit_retirement/retired_count",
    "retired_pages/double bit ecc": "retired_pages/double_bit_retirement/retired_count",
    "retired_pages/pending page blacklist": "retired_pages/pending_blacklist",
    "retired_pages/pending": "retired_pages/pending_retirement",
    "ecc_mode/current": "ecc_mode/current_ecc",
    "ecc_mode/pending": "ecc_mode/pending_ecc",
    "pci/bus id": "pci/pci_bus_id",
    "pci/device id": "pci/pci_device_id",
    "pci/sub system id": "pci/pci_sub_system_id",
    "pci/gpu_link_info/pcie_generation/max": f"{_LINK}/pcie_gen/max_link_gen",
    "pci/gpu_link_info/pcie_generation/current": f"{_LINK}/pcie_gen/current_link_gen",
    "pci/gpu_link_info/link_width/max": f"{_LINK}/link_widths/max_link_width",
    "pci/gpu_link_info/link_width/current": f"{_LINK}/link_widths/current_link_width",
    "utilization/gpu": "utilization/gpu_util",
    "utilization/memory": "utilization/memory_util",
    "temperature/gpu current temp": "temperature/gpu_temp",
    "temperature/gpu": "temperature/gpu_temp",
    "temperature/gpu shutdown temp": "temperature/gpu_temp_max_threshold",
    "temperature/gpu slowdown temp": "temperature/gpu_temp_slow_threshold",
    "temperature/gpu max operating temp": "temperature/gpu_temp_max_gpu_threshold",
    "temperature/memory current temp": "temperature/memory_temp",
    "temperature/memory max operating temp": "temperature/gpu_temp_max_mem_threshold",
    "inforom_version/image version": "inforom_version/img_version",
    "inforom_version/power management object": "inforom_version/pwr_object",
    "driver_model/current": "driver_model/current_dm",
    "driver_model/pending": "driver_model/pending_dm",
    "processes/process id": "processes/process_info/pid",
    "processes/used gpu memory": "processes/process_info/used_memory",
    "processes/type": "processes/process_info/type",
}
# Lines that say by themselves which section they are of.
_ANYWHERE = {
    **{
        key.partition("/")[2]: path
        for key, path in _PATHS.items()
        if key.startswith("temperature/") and key.count(" ")
    },
    **{
        reason: f"clocks_throttle_reasons/clocks_throttle_reason_{reason.replace(' ', '_')}"
        for reason in (
            "sw thermal slowdown", "hw thermal slowdown", "hw power brake slowdown", "sw power cap",
            "hw slowdown",
        )
    },
}  # fmt: skip
_CLOCKS = {"graphics": "graphics", "sm": "sm", "memory": "mem", "video": "video"}


@reader(
    "Retired Pages", "ECC Errors", "ECC Mode", "Clocks Throttle Reasons", "Clocks Event Reasons",
    "GPU Link Info", "NVSMI LOG", "Product Name", "Power Readings", "Applications Clocks",
    "GPU Current Temp", "Memory Current Temp", "Thermal Slowdown", "Replays Since Reset",
    "Persistence Mode", "Compute Mode", "Performance State", "<nvidia_smi_log", "<gpu id=",
    after=200,
)  # fmt: skip
def query(text: Text) -> Iterator[Part]:
    """Yield what stands in the sections of each GPU."""
    gpus: dict[int, list[Reading]] = {}
    host: list[Reading] = []
    readings = _xml(text) if "<gpu id=" in text.joined() else _text(text)
    for index, reading in readings:
        (host if reading.path in _HOST.values() else gpus.setdefault(index, [])).append(reading)
    if not _is_whole(text, len(gpus)):
        gpus = {index if _BUS not in _paths(own) else ~index: own for index, own in gpus.items()}
    if gpus or host:
        yield part(text, gpus, host)


def _paths(readings: list[Reading]) -> set[str]:
    return {reading.path for reading in readings}


def _is_whole(text: Text, gpus: int) -> bool:
    """Say whether all GPUs of the host are there, so that their order tells their index."""
    return any(int(match[1] or match[2]) == gpus for match in _ATTACHED.finditer(text.joined()))


def _text(text: Text) -> Iterator[tuple[int, Reading]]:
    index, place, processes, begun = -1, [""], 0, False
    for line in text.lines:
        body = line.body
        begun = begun or "NVSMI LOG" in body
        if bus := _GPU.search(body):
            index, place, processes = index + 1, [""], 0
            yield index, Reading(_BUS, bus[1], line)
            continue
        match = _VALUE.match(body)
        if match is None:
            place = _heading(place, body.lower().rstrip(" :")) if body else place
            continue
        key, value = " ".join(match[1].lower().split()), match[2] or ""
        if not value and key in (*_BELOW, *_SECTIONS):
            place = _heading(place, key)
        elif path := _path(place, key, begun or index >= 0):
            processes += path.endswith("/pid")
            path = path.replace("process_info", f"process_info#{processes}")
            yield max(index, 0), Reading(path, value, line)
        elif key == "processes" and value == "None":
            yield max(index, 0), Reading("processes", "", line)


def _heading(place: list[str], name: str) -> list[str]:
    if name in _BELOW:
        return [*place[: _BELOW[name]], name.replace(" ", "_")]
    return [_SECTIONS.get(name, "")]


def _path(place: list[str], key: str, begun: bool) -> str:
    """Return the element of a line: by its section, else as a line of the GPU or the host.

    Before a dump has `begun` only what no other tool prints is taken for one of its lines.
    """
    name = key.replace(" ", "_")
    if place[0].endswith("_reasons"):
        return f"{place[0]}/{place[0][:-1]}_{_REASONS.get(key, name)}"
    if place[0].endswith("clocks") and key in _CLOCKS:
        return f"{place[0]}/{_CLOCKS[key]}_clock"
    where = "/".join(place)
    if path := _PATHS.get(f"{where}/{key}"):
        return path
    path = _HOST.get(key) or _OF_GPU.get(key)
    if path and (begun or key in _ALONE):
        return path
    known = ("ecc_errors", "power_readings", "gpu_power_readings", "fb_memory_usage")
    if place[0] in (*known, "inforom_version"):
        return f"{where}/{name}"
    return _ANYWHERE.get(key, "")


def _xml(text: Text) -> Iterator[tuple[int, Reading]]:
    index, place, opened = -1, list[str](), 0
    for line in text.lines:
        body = line.body
        if bus := _XML_GPU.search(body):
            index, place = index + 1, []
            yield index, Reading(_BUS, bus[1], line)
        elif match := _XML_VALUE.search(body):
            yield max(index, 0), Reading("/".join([*place, match[1]]), match[2], line)
        elif match := _XML_OPEN.search(body):
            opened += match[1] == "process_info"
            place.append(f"{match[1]}#{opened}" if match[1] == "process_info" else match[1])
            if index < 0:
                place = []
        elif place and _XML_CLOSE.search(body):
            place.pop()
