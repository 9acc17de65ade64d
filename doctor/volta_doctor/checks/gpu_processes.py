"""Who is on the GPUs besides the server, and does the server load them evenly?"""

from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import gpus, per_gpu, shown
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import (
    groups,
    label,
    named,
    per_server,
    ranks,
    tensor_parallel,
)
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, GpuProcess, value
from volta_doctor.facts.processes import DAEMONS, DISPLAY_SERVERS, GpuUser, ProcessesFacts
from volta_doctor.facts.serve import Server
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import several

_GIB = 2**30
_MIB = 2**20
_GHOST_MIB = 500
# What an engine takes where it is not told (vllm/config/cache.py; newer ones take 0.92).
_DEFAULT_SHARE = {"vllm": 0.9, "1cat-vllm": 0.9}
_UVM = "/dev/nvidia-uvm"  # a CUDA program opens it, one that only asks NVML does not

_BUSY, _LAZY, _APART, _IDLE = 95, 35, 25, 10  # percent, points
_SPAN_MS = 10_000


def _holders(gpu: GpuFacts) -> list[GpuProcess]:
    """Return the processes on a GPU. Raises Missing where NVML does not list them."""
    found: dict[int, GpuProcess] = {}
    for reading in (gpu.compute_processes, gpu.graphics_processes):
        processes = value(reading)
        if processes is None:
            raise Missing(f"NVML does not list the processes on {label(gpu)}: {shown(reading)}.")
        found |= {process.pid: process for process in processes}
    return list(found.values())


def _in_container(facts: Facts) -> str | None:
    host = facts.host.data
    return host.container if host else None


@check("neighbour")
def neighbour(facts: Facts, row: Row) -> Iterator[Finding]:
    """An engine takes its share of all memory at its start, whoever else is there."""
    gpus(facts)  # where NVML tells of none it is the host that cannot be judged, not each server
    processes = facts.processes.need()

    def judge(server: Server) -> Finding:
        if container := _in_container(facts):
            raise Missing(f"In this {container} container NVML's process ids are not /proc's.")
        own, name = set(server.pids), server.name
        foreign: list[Evidence] = []
        tight: list[str] = []
        for gpu in ranks(facts, server):
            holders = _holders(gpu)
            others = [p for p in holders if p.pid not in own and not _is_daemon(p, processes)]
            foreign += [Evidence("NVML", _on(gpu, process, processes)) for process in others]
            mine = [p.memory for p in holders if p.pid in own]
            tight += _tight(gpu, server, mine)
        if tight:
            return row.fail(" ".join(tight), *foreign or [_memory(facts, server)], subject=name)
        if foreign:
            who = "; ".join(dict.fromkeys(seen.text for seen in foreign))
            return row.warn(f"On its GPUs, but not its own: {who}.", *foreign, subject=name)
        return row.ok("Its GPUs hold no other program.", subject=name)

    return per_server(facts, row, judge)


def _is_daemon(process: GpuProcess, processes: ProcessesFacts) -> bool:
    """Say whether it is one of NVIDIA's, such as the server of MPS, through which clients work."""
    return any(tool.pid == process.pid and tool.name in DAEMONS for tool in processes.tools)


def _tight(gpu: GpuFacts, server: Server, mine: list[int | None]) -> list[str]:
    """Say where the server's share does not fit. Raises Missing where NVML hides a size."""
    share = server.flags.gpu_memory_utilization or _DEFAULT_SHARE.get(server.engine)
    total, free = value(gpu.memory.total), value(gpu.memory.free)
    if share is None:
        return []
    if total is None or free is None or None in mine:
        raise Missing(f"NVML does not tell the memory of {label(gpu)} and who holds it.")
    available = free + sum(size for size in mine if size)
    if available >= share * total:
        return []
    return [
        f"{label(gpu)}: the server takes {share:g} of {total / _GIB:.1f} GiB, that is"
        f" {share * total / _GIB:.1f} GiB, and {available / _GIB:.1f} GiB are free or its own."
    ]


def _memory(facts: Facts, server: Server) -> Evidence:
    told = (
        f"{label(gpu)}: free {shown(gpu.memory.free)}, used {shown(gpu.memory.used)} bytes"
        for gpu in ranks(facts, server)
    )
    return Evidence("NVML", "; ".join(told))


def _on(gpu: GpuFacts, process: GpuProcess, processes: ProcessesFacts) -> str:
    size = "memory" if process.memory is None else f"{process.memory / _GIB:.1f} GiB"
    return f"{_who(process.pid, processes)} holds {size} on {label(gpu)}"


def _who(pid: int, processes: ProcessesFacts) -> str:
    known = next((user for user in processes.gpu_users if user.pid == pid), None)
    if known is None:
        return f"pid {pid}"
    place = known.unit or (f"container {known.container}" if known.container else "")
    return f"{known.name} (pid {pid}{', ' + place if place else ''})"


@check("ghost-mem")
@per_gpu
def ghost_mem(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Memory that nobody alive owns comes back with a reset only."""
    used = value(gpu.memory.used)
    if used is None:
        return row.unknown(f"NVML does not tell the memory in use: {shown(gpu.memory.used)}.")
    mib = used / _MIB
    seen = Evidence("NVML", f"{label(gpu)}: {mib:.0f} MiB in use")
    if mib <= _GHOST_MIB:
        return row.ok(f"{mib:.0f} MiB are in use.", seen)
    try:
        return _owner(row, gpu, facts.processes.need(), mib, seen, _in_container(facts))
    except Missing as reason:
        return row.unknown(str(reason), seen)


def _owner(
    row: Row,
    gpu: GpuFacts,
    processes: ProcessesFacts,
    mib: float,
    seen: Evidence,
    container: str | None,
) -> Finding:
    listed = {process.pid for process in _holders(gpu)}
    device = f"/dev/nvidia{value(gpu.minor_number)}"
    alive = {user.pid for user in processes.gpu_users} | set(processes.hidden_pids)
    owners = (listed & alive) or {u.pid for u in processes.gpu_users if _computes(u, device)}
    if owners:
        who = ", ".join(_who(pid, processes) for pid in sorted(owners))
        return row.ok(f"{mib:.0f} MiB are in use, by {who}.", seen)
    if container:
        text = f"{mib:.0f} MiB are in use; this {container} container hides the host's processes."
        return row.unknown(text, seen)
    if processes.hidden:
        text = (
            f"{mib:.0f} MiB are in use; open files are hidden of"
            f" {several(processes.hidden, 'process')}: run again with sudo."
        )
        return row.unknown(text, seen)
    dead = f" NVML still lists pid {', '.join(map(str, sorted(listed)))}." if listed else ""
    text = f"{mib:.0f} MiB are in use, and no live process has {label(gpu)} open.{dead}"
    return row.warn(text, seen)


def _computes(user: GpuUser, device: str) -> bool:
    return device in (user.devices or []) and _UVM in (user.devices or [])


@check("graphics")
def graphics(facts: Facts, row: Row) -> Finding:
    """A desktop takes memory and time from the server, and restarts with the seat."""
    processes, nvml = facts.processes.need(), facts.nvml.data
    seen: dict[str, Evidence] = {}
    for user in processes.gpu_users:
        if user.name in DISPLAY_SERVERS and user.devices:
            text = f"{', '.join(user.devices)} open"
            seen[_who(user.pid, processes)] = Evidence(f"/proc/{user.pid}/fd", text)
    lists = [(gpu, value(gpu.graphics_processes)) for gpu in nvml.gpus] if nvml else []
    for gpu, drawing in lists:
        for process in drawing or []:
            text = _on(gpu, process, processes)
            seen.setdefault(_who(process.pid, processes), Evidence("NVML", text))
    if seen:
        return row.warn(f"On a GPU: {', '.join(seen)}.", *seen.values())
    complete = bool(lists) and all(drawing is not None for _, drawing in lists)
    if not complete and processes.hidden:
        return row.unknown(
            "NVML does not list graphics processes, and open files are hidden of"
            f" {several(processes.hidden, 'process')}: run again with sudo."
        )
    return row.ok("No graphics process is on a GPU.")


@check("load-imbalance")
def load_imbalance(facts: Facts, row: Row) -> Iterator[Finding]:
    """The group waits for its slowest member in every layer."""
    gpus(facts)

    def judge(server: Server) -> Iterator[Finding]:
        if tensor_parallel(server) == 1:
            yield row.ok("Its tensor-parallel size is 1.", subject=server.name)
            return
        found = [_balance(row, server, group) for group in groups(facts, server)]
        yield min(found, key=lambda finding: _ORDER.index(finding.status.value))

    return per_server(facts, row, judge)


_ORDER = ("warn", "unknown", "info", "ok")


def _balance(row: Row, server: Server, group: list[GpuFacts]) -> Finding:
    means = {label(gpu): value(gpu.utilization_samples.mean) for gpu in group}
    spans = [value(gpu.utilization_samples.span_ms) for gpu in group]
    loads = [mean for mean in means.values() if mean is not None]
    known = [span for span in spans if span is not None]
    text = ", ".join(f"{name} {mean} %" for name, mean in means.items() if mean is not None)
    seen = Evidence("NVML", text or "no samples")
    name = server.name
    if len(loads) < len(group) or len(known) < len(group):
        text = f"NVML keeps no utilization samples of all of {named(group)}."
        return row.unknown(text, seen, subject=name)
    span = f"over {min(known) / 1000:.0f} s"
    if max(loads) < _IDLE:
        return row.ok(f"The group is idle {span}: {text}.", seen, subject=name)
    if min(known) < _SPAN_MS:
        wanted = f"{_SPAN_MS // 1000} s"
        text = f"Busy ({text}), but NVML's samples go back {min(known) / 1000:.1f} s, not {wanted}."
        return row.unknown(text, seen, subject=name)
    if max(loads) >= _BUSY and min(loads) <= _LAZY:
        return row.warn(f"One GPU works while another waits, {span}: {text}.", seen, subject=name)
    if max(loads) - min(loads) >= _APART:
        apart = max(loads) - min(loads)
        return row.info(f"{several(apart, 'point')} apart {span}: {text}.", seen, subject=name)
    return row.ok(f"Evenly loaded {span}: {text}.", seen, subject=name)
