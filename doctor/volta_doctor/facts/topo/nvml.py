"""Topology through NVML."""

from collections.abc import Iterator, Sequence
from typing import Any

import pynvml as nvml

from volta_doctor.facts import cpu_list
from volta_doctor.facts.nvml import NvmlError
from volta_doctor.facts.nvml.calls import attempt
from volta_doctor.facts.topo import SELF, UNTOLD, TopoFacts
from volta_doctor.probe import CannotLook

_PATHS = {
    nvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two GPUs of one board
    nvml.NVML_TOPOLOGY_SINGLE: "PIX",
    nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    nvml.NVML_TOPOLOGY_NODE: "NODE",
    nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
_STATUSES = {
    nvml.NVML_P2P_STATUS_OK: "OK",
    nvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: "CNS",
    nvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "GNS",
    nvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "TNS",
    nvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "DR",
    nvml.NVML_P2P_STATUS_NOT_SUPPORTED: "NS",
    nvml.NVML_P2P_STATUS_UNKNOWN: "U",
}
_READ = 0  # pynvml has a tuple for NVML_P2P_CAPS_INDEX_READ
# NVSwitches of the V100, A100 and H100 systems (pci.ids), for drivers that do not name a link's
# other end. Links to one switch reach every GPU.
_SWITCH_IDS = (0x1AC0, 0x1AC1, 0x1AC2, 0x1AF1, 0x22A3)
_SWITCH = "NVSwitch"
_WORDS = 16  # of 64 CPUs or NUMA nodes each


def read_host() -> TopoFacts:
    """Return the matrices. Raises CannotLook where NVML does not start or cannot compare GPUs."""
    error = attempt(nvml.nvmlInit)
    if isinstance(error, NvmlError):
        raise CannotLook(f"NVML did not start: {error.text}")
    try:
        count = attempt(nvml.nvmlDeviceGetCount)
        if isinstance(count, NvmlError):
            raise CannotLook(f"NVML does not count the GPUs: {count.text}")
        return assemble([attempt(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)])
    finally:
        attempt(nvml.nvmlShutdown)


def assemble(gpus: Sequence[Any]) -> TopoFacts:
    """Return the matrices of these handles; an NvmlError stands for a GPU that cannot be opened."""
    peers = [_peers(gpu) for gpu in gpus]
    buses = [_bus(gpu) for gpu in gpus]
    pairs = [(i, j) for i in range(len(gpus)) for j in range(len(gpus)) if i != j]
    links = _square(len(gpus))
    p2p = _square(len(gpus))
    problem = ""
    for i, j in pairs:
        count = min(peers[i].count(_SWITCH), peers[j].count(_SWITCH)) or peers[i].count(buses[j])
        links[i][j] = f"NV{count}" if count else _ask_pair(_path, gpus[i], gpus[j])
        status = _ask_pair(_status, gpus[i], gpus[j])
        p2p[i][j] = status if isinstance(status, str) else UNTOLD
        if isinstance(status, NvmlError):
            problem = f"nvmlDeviceGetP2PStatus: {status.text}"
    refused = [links[i][j] for i, j in pairs if isinstance(links[i][j], NvmlError)]
    if pairs and len(refused) == len(pairs):
        raise CannotLook(f"nvmlDeviceGetTopologyCommonAncestor: {refused[0].text}")
    told = not pairs or any(p2p[i][j] != UNTOLD for i, j in pairs)
    return TopoFacts(
        source="NVML",
        uuids=[_uuid(gpu, index) for index, gpu in enumerate(gpus)],
        links=[[UNTOLD if isinstance(c, NvmlError) else c for c in row] for row in links],
        p2p=p2p if told else None,
        p2p_problem=problem,
        cpus=[
            cpu_list.write(set(_bits(nvml.nvmlDeviceGetCpuAffinity, gpu))) or None for gpu in gpus
        ],
        nodes=[_only(_bits(nvml.nvmlDeviceGetMemoryAffinity, gpu, 0)) for gpu in gpus],
    )


def _square(size: int) -> list[list[Any]]:
    return [[SELF if i == j else UNTOLD for j in range(size)] for i in range(size)]


def _ask_pair(call: Any, one: Any, other: Any) -> Any:
    for gpu in (one, other):
        if isinstance(gpu, NvmlError):
            return gpu
    return attempt(call, one, other)


def _path(one: Any, other: Any) -> str:
    return _PATHS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other), UNTOLD)


def _status(one: Any, other: Any) -> str:
    return _STATUSES.get(nvml.nvmlDeviceGetP2PStatus(one, other, _READ), "U")


def _uuid(gpu: Any, index: int) -> str:
    uuid = gpu if isinstance(gpu, NvmlError) else attempt(nvml.nvmlDeviceGetUUID, gpu)
    return f"GPU {index}" if isinstance(uuid, NvmlError) else str(uuid)


def _bus(gpu: Any) -> tuple[int, int, int] | None:
    info = gpu if isinstance(gpu, NvmlError) else attempt(nvml.nvmlDeviceGetPciInfo, gpu)
    return None if isinstance(info, NvmlError) else (info.domain, info.bus, info.device)


def _peers(gpu: Any) -> list[Any]:
    """Return what is at the other end of each active link: a bus address, or `NVSwitch`."""
    return [] if isinstance(gpu, NvmlError) else list(_ends(gpu))


def _ends(gpu: Any) -> Iterator[Any]:
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        active = attempt(nvml.nvmlDeviceGetNvLinkState, gpu, link)
        if isinstance(active, NvmlError):
            if active.error in (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED):
                return  # there are no more, or none at all
            continue
        if not active:
            continue
        kind = attempt(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, gpu, link)
        remote = attempt(nvml.nvmlDeviceGetNvLinkRemotePciInfo, gpu, link)
        known = not isinstance(remote, NvmlError)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH or (
            isinstance(kind, NvmlError) and known and remote.pciDeviceId >> 16 in _SWITCH_IDS
        ):
            yield _SWITCH
        elif known:
            yield remote.domain, remote.bus, remote.device


def _bits(call: Any, gpu: Any, *scope: int) -> list[int]:
    """Return the numbers of the bits that are set, none where NVML does not tell."""
    words = gpu if isinstance(gpu, NvmlError) else attempt(call, gpu, _WORDS, *scope)
    if isinstance(words, NvmlError):
        return []
    return [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _only(bits: list[int]) -> int | None:
    return bits[0] if len(bits) == 1 else None
