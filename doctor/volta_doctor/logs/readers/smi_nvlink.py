"""Lists of GPUs by `nvidia-smi -L` and what has their form, and `nvlink -s` and `-e` below them."""

import re
from collections.abc import Iterator

from msgspec import structs

from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import GpuFacts, NvLinkFacts, NvmlFacts
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Text

_GPU = re.compile(
    r"(?:^|[\s|:])GPU\s?(?P<index>\d{1,2})\s*:\s*"
    r"(?P<name>(?:NVIDIA|Tesla|GeForce|Quadro|TITAN)\b[\w ./-]{0,50}?)"
    r"\s*(?:\(UUID:\s*(?P<uuid>[\w-]{0,50})[\s.\u2026]{0,9}\)?)?$"
)
_STATE = re.compile(
    r"\bLink (\d{1,2}):\s*(?:(\d+(?:\.\d+)?) GB/s|(<?inactive>?))\s*$", re.IGNORECASE
)
_ERRORS = re.compile(
    r"\bLink (\d{1,2}):\s*(Replay|Recovery|CRC)(?: FLIT| Data)? Errors:\s*(\d+)", re.IGNORECASE
)
_FIELDS = {"replay": "replays", "recovery": "recoveries", "crc": "crc_flit"}
_WORDS = {"replay": "replays by link", "recovery": "recoveries by link", "crc": "CRC errors"}
JUDGES = ("nvl-speed", "nvl-crc", "nvl-replay", "nvl-recovery")
# A list that is cut off shows fewer links than there are: only one that is down tells of itself.
_WITH_ONE_DOWN = ("nvl-count", *JUDGES)


@reader(
    "GPU 0:", "GPU 1:", "(UUID:", "Link 0:", "Link 1:", " GB/s", "Errors:", "inactive", after=60
)
def nvlink(text: Text) -> Iterator[Part]:
    """Yield the names and the NVLinks; a link of no GPU is one of GPU 0."""
    gpus: dict[int, GpuFacts] = {}
    links: dict[int, dict[int, NvLinkFacts]] = {}
    seen: list[Seen] = []
    index = 0
    for line in text.lines:
        if match := _GPU.search(line.body):
            index = int(match["index"])
            uuid = match["uuid"] if (match["uuid"] or "").startswith("GPU-") else None
            name = " ".join(match["name"].split())
            gpus.setdefault(index, GpuFacts(index=index, name=name, uuid=uuid))
            continue
        if match := _STATE.search(line.text):
            speed = round(float(match[2]) * 1000) if match[2] else None
            link = NvLinkFacts(active=match[2] is not None, speed_mbps=speed)
            found = {"active": link.active, "speed_mbps": speed}
            words = "GB/s: " if link.active else "NVLinks, "
        elif match := _ERRORS.search(line.text):
            kind = match[2].lower()
            found = {"active": True, _FIELDS[kind]: int(match[3])}
            found |= {"crc_data": 0} if kind == "crc" else {}
            words = _WORDS[kind] if match[3] != "0" else ""
        else:
            continue
        of_gpu = links.setdefault(index, {})
        number = int(match[1])
        of_gpu[number] = structs.replace(of_gpu.get(number, NvLinkFacts()), **found)
        if words:
            seen.append(Seen("nvml", words, text.evidence(line), f"GPU {index}"))
    for index, of_gpu in links.items():
        # A link that is left out is none that is judged.
        every = [of_gpu.get(n, NvLinkFacts(active=False)) for n in range(max(of_gpu) + 1)]
        gpu = gpus.get(index, GpuFacts(index=index))
        gpus[index] = structs.replace(gpu, nvlinks=every)
    if gpus:
        nvml = NvmlFacts(source="nvidia-smi", gpus=[gpus[index] for index in sorted(gpus)])
        down = any(link.active is False for of_gpu in links.values() for link in of_gpu.values())
        gaps = any(len(of_gpu) <= max(of_gpu) for of_gpu in links.values())
        judges = _WITH_ONE_DOWN if down and not gaps else JUDGES if links else ()
        yield Part(Facts(nvml=section(nvml)), judges, seen)
