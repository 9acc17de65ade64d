"""The table that `nvidia-smi` prints, in its older and newer layouts, whole or in single rows."""

import re
from collections.abc import Iterator

from volta_doctor.logs.parts import Part
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._gpus import PER_GPU, PROCESS, Reading, part
from volta_doctor.logs.text import Text

_DRIVER = re.compile(r"Driver Version:\s*(\d{3}\.\d[\d.]*)")
_CUDA = re.compile(r"CUDA Version:\s*(\d+\.\d+)")
_UPPER = re.compile(
    r"""(?:^|\|)\s*(?P<index>\d{1,2})\s+(?P<name>\S.{0,60}?)\s+(?P<persistence>On|Off|N/A|WDDM|TCC|ERR!)
    \s*\|\s*(?P<bus>[0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])\s+(?:On|Off|N/A|ERR!)
    (?:\s*\|\s*(?P<ecc>\d+|Off|N/A|ERR!))?""",
    re.VERBOSE | re.IGNORECASE,
)
_LOWER = re.compile(
    r"""(?:^|\|)\s*(?:\d+%|N/A|ERR!)\s+(?P<temp>\d+C|N/A|ERR!)\s+(?P<state>P\d+|N/A|ERR!)
    \s+(?P<draw>[\d.]+\s?W|N/A|ERR!)\s*/\s*(?P<cap>[\d.]+\s?W|N/A|ERR!)
    (?:\s*\|\s*(?P<used>\d+\s?MiB|N/A|ERR!)\s*/\s*(?P<total>\d+\s?MiB|N/A|ERR!))?
    (?:\s*\|\s*(?P<busy>\d+%|N/A|ERR!)\s+(?P<mode>Default|E\.\s?Process|E\.\s?Thread|Prohibited|N/A))?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NOBODY = "No running processes found"
_RULER = re.compile(r"\|={8,}|\+={8,}")
_SWITCH = {"on": "Enabled", "off": "Disabled", "n/a": "N/A", "err!": "Unknown Error"}
_MODES = {"e.process": "Exclusive_Process", "e.thread": "Exclusive_Thread"}
_VOLATILE = "ecc_errors/volatile/double_bit/total"


@reader(
    "NVIDIA-SMI",
    "MiB /",
    "MiB/",
    "Persistence-M",
    "Bus-Id",
    "| N/A",
    "Driver Version:",
    "00000000:",
)
def table(text: Text) -> Iterator[Part]:
    """Yield the header, the rows of GPUs and those of processes."""
    gpus: dict[int, list[Reading]] = {}
    host: list[Reading] = []
    index, orphans, whole, listed = -1, 0, False, 0
    for line in text.lines:
        whole = whole or bool(_RULER.search(line.text))
        for path, pattern in (("driver_version", _DRIVER), ("cuda_version", _CUDA)):
            if "SMI" in line.text and (match := pattern.search(line.text)):
                host.append(Reading(path, match[1], line))
        if match := _UPPER.search(line.text):
            index = int(match["index"])
            found = gpus.setdefault(index, [])
            found += [Reading(p, t, line) for p, t in _upper(match)]
        elif match := _LOWER.search(line.text):
            if index < 0:  # the row above was cut off
                index, orphans = orphans, orphans + 1
            found = gpus.setdefault(index, [])
            found += [Reading(p, t, line) for p, t in _lower(match)]
            index = -1
        elif match := PROCESS.search(line.text):
            found = gpus.setdefault(int(match["index"]), [])
            listed += 1
            for name, value in _process(match):
                found.append(Reading(f"processes/process_info#{listed}/{name}", value, line))
        elif _NOBODY in line.text:
            for found in gpus.values():
                found.append(Reading("processes", "", line))
    if gpus or host:
        every = whole and sorted(gpus) == list(range(len(gpus)))
        yield part(text, gpus, host, [*PER_GPU, "visible-devices"] if every else PER_GPU)


def _upper(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    if match["name"] != "ERR!":
        yield "product_name", match["name"].rstrip(". ")  # the column may cut it off
    yield "pci/pci_bus_id", match["bus"]
    if switch := _SWITCH.get(match["persistence"].lower()):
        yield "persistence_mode", switch
    if ecc := match["ecc"]:
        off = ecc.lower() == "off"
        yield _VOLATILE, "N/A" if off else "Unknown Error" if ecc == "ERR!" else ecc
        if ecc.isdigit() or (off and "GeForce" not in match["name"]):  # these come with it off
            yield "ecc_mode/current_ecc", "Disabled" if off else "Enabled"
        elif ecc == "N/A":
            yield "ecc_mode/current_ecc", "N/A"


def _lower(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    def told(name: str) -> str | None:
        value = match[name]
        return None if value is None or value.upper() in ("N/A", "ERR!") else value

    if temp := told("temp"):
        yield "temperature/gpu_temp", temp.rstrip("Cc")
    if state := told("state"):
        yield "performance_state", state
    for name, path in (("draw", "power_draw"), ("cap", "enforced_power_limit")):
        if watts := told(name):
            yield f"power_readings/{path}", f"{watts.rstrip('Ww ')} W"
    for name in ("used", "total"):
        if memory := told(name):
            yield f"fb_memory_usage/{name}", f"{memory.rstrip('MiB ')} MiB"
    if busy := told("busy"):
        yield "utilization/gpu_util", f"{busy.rstrip('%')} %"
    if mode := told("mode"):
        mode = mode.replace(" ", "")
        yield "compute_mode", _MODES.get(mode.lower(), mode)


def _process(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    yield "pid", match["pid"]
    yield "type", match["type"]
    yield "process_name", match["name"]
    yield "used_memory", match["memory"].replace("MiB", " MiB")
