"""Processes that cannot be woken."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.processes import processes
from volta_doctor.why.rules import likely, rule

# Programs that use a card.
_ON_A_CARD = re.compile(
    r"nvidia|python|vllm|sglang|ollama|llama|lmdeploy|dcgm|triton|ray::|nvtop|gpustat|torchrun",
    re.I,
)


@rule("hung-task")
def in_state_d(case: Case, row: Row) -> Iterator[Finding]:
    """State D of a program that uses a card; one glance may meet it in a short wait for a disk."""
    for process in processes(case):
        stuck = process.state and process.state.startswith("D")
        if not stuck or not _ON_A_CARD.search(process.command):
            continue
        who = f" (pid {process.pid})" if process.pid is not None else ""
        text = f"{process.command[:60]}{who} is in state D: it waits in the kernel."
        finding = row.fail(text, process.evidence)
        is_tool = "nvidia-smi" in process.command
        why = "a process that reads a disk or a network file system is in this state too"
        yield finding if is_tool else likely(finding, why)
