"""Who holds the memory of a card: the server itself, another process, a desktop, or nobody."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.facts.nvml import value
from volta_doctor.findings import Evidence, Finding
from volta_doctor.logs.readers._gpus import PROCESS
from volta_doctor.why.case import Case
from volta_doctor.why.processes import processes
from volta_doctor.why.rules import likely, rule

_MIB = 1 << 20
_IDLE_MIB = 500  # what a card holds without any process, at most (the check's limit)
_NOBODY = re.compile("No running processes found")
_OUT_OF_MEMORY = ("cuda-out-of-memory", "cublas-failed")  # symptoms
# Processes that a server starts for itself; its first one may well be a child of pid 1.
_WORKER = re.compile(
    r"worker|EngineCore|::scheduler|spawn_main|multiprocessing|ray::", re.IGNORECASE
)
_FULL = 0.85  # of a card's memory (ours)
# Engines that use one card where they are not told otherwise; llama.cpp takes all.
_ON_ONE_CARD = ("vllm", "sglang", "lmdeploy")
_MUCH_MIB = 1024  # less is the context of a monitor (ours)
_OWN = 0.8  # of a card's memory: with so much of its own no neighbour is to blame (ours)
_SENTENCES = (
    r"total capaci?ty of (?P<total>[\d.]+) GiB .{0,400}this process has (?P<own>[\d.]+) GiB"
    r" memory in use",
    r"total capaci?ty of (?P<total>[\d.]+) GiB .{0,300}Of the allocated memory (?P<own>[\d.]+) GiB"
    r" is allocated by PyTorch",
    r"GPU \d+; (?P<total>[\d.]+) GiB total capacity; (?P<own>[\d.]+) GiB already allocated",
)


class Holder(NamedTuple):
    """A process that holds much of a card's memory, as nvidia-smi lists it."""

    gpu: str
    pid: int
    name: str
    is_desktop: bool
    mib: int
    evidence: Evidence

    @property
    def says(self) -> str:
        """What it holds, in words."""
        return f"{self.name} (process {self.pid}) holds {self.mib} MiB"


def _holders(case: Case) -> Iterator[Holder]:
    for match, evidence in case.matching(PROCESS):
        if match["memory"] == "N/A" or match["type"] == "M":  # the MPS server itself
            continue
        pid, mib = int(match["pid"]), int(match["memory"].removesuffix("MiB"))
        if mib >= _MUCH_MIB:
            gpu, name, is_desktop = f"GPU {match['index']}", match["name"], match["type"] == "G"
            yield Holder(gpu, pid, name, is_desktop, mib, evidence)


def _is_full(case: Case) -> bool:
    """Say whether a server found no memory, by a message or by its own count."""
    return case.found("mem-fit") or _ran_out(case)


def _ran_out(case: Case) -> bool:
    return case.shows(*_OUT_OF_MEMORY)


@rule("mem-fit")
def the_process_itself(case: Case, row: Row) -> Iterator[Finding]:
    """The process that failed holds nearly all of the card."""
    if not case.shows("cuda-out-of-memory"):
        return
    for pattern in _SENTENCES:
        groups = case.groups(pattern)
        if not groups:
            continue
        total, own = float(groups["total"]), float(groups["own"])
        if own >= _OWN * total:
            finding = row.fail(
                f"The server itself holds {own:g} of {total:g} GiB and needs more.",
                *case.lines(pattern, 2),
            )
            yield likely(finding, "it is the only large holder that the text names")


@rule("ghost-mem")
def nobody(case: Case, row: Row) -> Iterator[Finding]:
    """A table lists no process, and a card's memory is in use."""
    listed = case.lines(_NOBODY, 1)
    nvml = case.facts.nvml.data
    for gpu in nvml.gpus if nvml and listed else []:
        used = value(gpu.memory.used) or 0
        if used <= _IDLE_MIB * _MIB:
            continue
        held = re.compile(rf"\b{used // _MIB}\s?MiB\b")
        finding = row.warn(
            f"{used // _MIB} MiB are in use, and nvidia-smi lists no process.",
            *dict.fromkeys([*case.lines(held, 1), *listed]),
            subject=f"GPU {gpu.index}",
        )
        yield likely(finding, "in a container nvidia-smi lists no process of the host")


@rule("neighbour")
def another(case: Case, row: Row) -> Iterator[Finding]:
    """A server finds no memory, and a table lists who holds it."""
    for holder in _holders(case) if _ran_out(case) else ():
        if not holder.is_desktop:
            finding = row.fail(f"{holder.says}.", holder.evidence, subject=holder.gpu)
            yield likely(finding, "it may be the server itself, as it was before the error")


@rule("neighbour")
def more_than_the_server_takes(case: Case, row: Row) -> Iterator[Finding]:
    """More cards are full than the server was to use, while others are empty."""
    servers = case.facts.serve.data.servers if case.facts.serve.data else []
    nvml = case.facts.nvml.data
    if not (nvml and servers and servers[0].engine in _ON_ONE_CARD and _ran_out(case)):
        return
    flags = servers[0].flags
    taken = (flags.tensor_parallel_size or 1) * (flags.pipeline_parallel_size or 1)
    used = [(gpu, value(gpu.memory.used), value(gpu.memory.total)) for gpu in nvml.gpus]
    full = [gpu for gpu, held, total in used if held and total and held > _FULL * total]
    is_one_empty = any(held is not None and held <= _IDLE_MIB * _MIB for _, held, _ in used)
    if len(full) <= taken or not is_one_empty:
        return
    names = [f"GPU {gpu.index}" for gpu in full]
    shown = [
        seen.evidence for seen in case.seen if seen.subject in names and seen.section == "nvml"
    ]
    finding = row.fail(
        f"{', '.join(names)} are full and another card is empty, and the server was to use {taken}:"
        " other programs hold the rest.",
        *list(dict.fromkeys(shown))[:4],
    )
    yield likely(finding, "the processes that hold the memory are not listed")


@rule("neighbour")
def orphan(case: Case, row: Row) -> Iterator[Finding]:
    """A worker whose server is gone still holds memory that the next start misses."""
    if not _is_full(case):
        return
    orphans = {
        process.pid: process
        for process in processes(case)
        if process.ppid == 1 and _WORKER.search(process.command)
    }
    for holder in _holders(case):
        if left := orphans.get(holder.pid):
            text = f"{holder.says}, and its parent is gone: a worker of an earlier run."
            yield row.fail(text, holder.evidence, left.evidence, subject=holder.gpu)


@rule("graphics")
def desktop(case: Case, row: Row) -> Iterator[Finding]:
    """A server finds no memory, and a desktop holds much of it."""
    for holder in _holders(case) if _is_full(case) else ():
        if holder.is_desktop:
            finding = row.warn(f"{holder.says}.", holder.evidence, subject=holder.gpu)
            yield likely(finding, "the text does not say whether the model would fit without it")
