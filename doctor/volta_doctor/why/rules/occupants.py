"""Memory of a card that another process holds, or nobody."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.facts.nvml import value
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.processes import processes
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.words import lines

_MIB = 1 << 20
_IDLE_MIB = 500  # what a card holds without any process, at most (the check's limit)
_NOBODY = re.compile("No running processes found")
_OUT_OF_MEMORY = ("cuda-out-of-memory", "cublas-failed")  # symptoms
# A row of nvidia-smi's list of processes, newer and older.
_PROCESS = re.compile(
    r"\|\s*(?P<gpu>\d{1,2})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d+)\s+(?:M\+)?C(?:\+G)?\s+"
    r"(?P<name>\S.*?)\s+(?P<held>\d+)\s?MiB\s*\|"
)
_DESKTOP = re.compile(
    r"\|\s*(?P<gpu>\d{1,2})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d+)\s+G\s+"
    r"(?P<name>\S.*?)\s+(?P<held>\d+)\s?MiB\s*\|"
)
# Processes that a server starts for itself; its first one may well be a child of pid 1.
_WORKER = re.compile(
    r"worker|EngineCore|::scheduler|spawn_main|multiprocessing|ray::", re.IGNORECASE
)
_FULL = 0.85  # of a card's memory
# Engines that use one card where they are not told otherwise; llama.cpp takes all.
_ON_ONE_CARD = ("vllm", "sglang", "lmdeploy")
_MUCH_MIB = 1024  # less is the context of a monitor


@rule("ghost-mem")
def nobody(case: Case, row: Row) -> Iterator[Finding]:
    """A table lists no process, and a card's memory is in use."""
    listed = lines(case, _NOBODY, 1)
    nvml = case.facts.nvml.data
    for gpu in nvml.gpus if nvml and listed else []:
        used = value(gpu.memory.used) or 0
        if used <= _IDLE_MIB * _MIB:
            continue
        held = re.compile(rf"\b{used // _MIB}\s?MiB\b")
        finding = row.warn(
            f"{used // _MIB} MiB are in use, and nvidia-smi lists no process.",
            *dict.fromkeys([*lines(case, held, 1), *listed]),
            subject=f"GPU {gpu.index}",
        )
        yield likely(finding, "in a container nvidia-smi lists no process of the host")


@rule("neighbour")
def another(case: Case, row: Row) -> Iterator[Finding]:
    """A server finds no memory, and a table lists who holds it."""
    if not any(name in case.symptoms for name in _OUT_OF_MEMORY):
        return
    for text in case.texts:
        for line in text.lines:
            match = _PROCESS.search(line.text)
            if match and int(match["held"]) >= _MUCH_MIB:
                finding = row.fail(
                    f"{match['name']} (process {match['pid']}) holds {match['held']} MiB.",
                    text.evidence(line),
                    subject=f"GPU {match['gpu']}",
                )
                yield likely(finding, "it may be the server itself, as it was before the error")


@rule("neighbour")
def more_than_the_server_takes(case: Case, row: Row) -> Iterator[Finding]:
    """More cards are full than the server was to use, while others are empty."""
    servers = case.facts.serve.data.servers if case.facts.serve.data else []
    nvml = case.facts.nvml.data
    if not (nvml and servers and servers[0].engine in _ON_ONE_CARD):
        return
    if not any(name in case.symptoms for name in _OUT_OF_MEMORY):
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
    orphans = {
        process.pid: process
        for process in processes(case)
        if process.ppid == 1 and _WORKER.search(process.command)
    }
    if not (orphans and (case.found("mem-fit") or any(n in case.symptoms for n in _OUT_OF_MEMORY))):
        return
    for text in case.texts:
        for line in text.lines:
            match = _PROCESS.search(line.text)
            left = orphans.get(int(match["pid"])) if match else None
            if match and left and int(match["held"]) >= _MUCH_MIB:
                yield row.fail(
                    f"{match['name']} (process {match['pid']}) holds {match['held']} MiB, and its"
                    " parent is gone: a worker of an earlier run.",
                    text.evidence(line),
                    left.evidence,
                    subject=f"GPU {match['gpu']}",
                )


@rule("graphics")
def desktop(case: Case, row: Row) -> Iterator[Finding]:
    """A server finds no memory, and a desktop holds much of it."""
    if not (case.found("mem-fit") or any(n in case.symptoms for n in _OUT_OF_MEMORY)):
        return
    for text in case.texts:
        for line in text.lines:
            match = _DESKTOP.search(line.text)
            if match and int(match["held"]) >= _MUCH_MIB:
                finding = row.warn(
                    f"{match['name']} (process {match['pid']}) holds {match['held']} MiB.",
                    text.evidence(line),
                    subject=f"GPU {match['gpu']}",
                )
                yield likely(
                    finding, "the text does not say whether the model would fit without it"
                )
