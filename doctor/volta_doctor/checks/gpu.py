"""What the checks of a GPU share: which GPUs there are, readings in words, settings as steps."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import structs

from volta_doctor.catalog import Row, compat
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, NvmlError, NvmlFacts, Reading, value
from volta_doctor.findings import Evidence, Finding, Step

T = TypeVar("T")
GpuCheck = Callable[[Facts, Row, GpuFacts], Finding]

_NOT_SUPPORTED = 3  # nvmlReturn_t (nvml.h)


class Inapplicable(Exception):  # noqa: N818 - it is an answer, not an accident
    """The rule says nothing of this GPU; the text says why."""


def started(facts: Facts) -> NvmlFacts:
    """Return what NVML says. Raises Missing where it did not start."""
    nvml = facts.nvml.need()
    if nvml.init_error:
        raise Missing(f"NVML did not start: {nvml.init_error}")
    return nvml


def gpus(facts: Facts) -> list[GpuFacts]:
    """Return the GPUs. Raises Missing where NVML did not start or lists none."""
    nvml = started(facts)
    if not nvml.gpus:
        raise Missing("NVML lists no GPU")
    return nvml.gpus


def subject(gpu: GpuFacts) -> str:
    """Name a GPU by its UUID, else by its index."""
    return value(gpu.uuid) or f"GPU {gpu.index}"


def shown(reading: object) -> str:
    """Put a reading in words: its value, NVML's error, or that it was not recorded."""
    if isinstance(reading, NvmlError):
        return f"error {reading}"
    return "not recorded" if reading is None else str(reading)


def unsupported(reading: object) -> bool:
    """Say whether NVML knows no such reading on this card."""
    return isinstance(reading, NvmlError) and reading.error == _NOT_SUPPORTED


def told(reading: Reading[T], what: str) -> T:
    """Return what was read. Raises Inapplicable where the card has no such thing, else Missing."""
    if unsupported(reading):
        raise Inapplicable(f"This card tells no {what}.")
    if reading is None or isinstance(reading, NvmlError):
        raise Missing(f"NVML does not tell the {what}: {shown(reading)}.")
    return reading


def seen(facts: Facts, text: str) -> Evidence:
    """Return a reading as evidence, with where it is from: NVML, or nvidia-smi in its place."""
    return Evidence(facts.nvml.need().source, text)


def device_id(gpu: GpuFacts) -> str:
    """Return the PCI device id in four hex digits (1db5), empty where NVML does not tell."""
    return (value(gpu.pci.device_id) or "")[2:6].lower()


def is_volta(gpu: GpuFacts) -> bool:
    """Say whether it is a Volta card. Raises Missing where NVML does not tell."""
    capability = value(gpu.compute_capability)
    if capability is None:
        text = shown(gpu.compute_capability)
        raise Missing(f"NVML does not tell whether it is a Volta card: compute capability {text}.")
    return capability == compat().volta.compute_capability


def setting(facts: Facts, gpu: GpuFacts, to: tuple[str, str], undo: tuple[str, str]) -> list[Step]:
    """Return the step that sets a GPU by an option of nvidia-smi, none where it cannot be set here.

    A container may see a GPU and not set it.
    """
    host, uuid = facts.host.data, value(gpu.uuid)
    if uuid is None or host is None or host.container:
        return []
    command = ["nvidia-smi", "-i", uuid]
    return [Step(run=[*command, *to], undo=[*command, *undo])]


def unopened(row: Row, gpu: GpuFacts) -> Finding:
    """Say that nothing is known of a GPU that NVML could not open."""
    return row.unknown(f"NVML cannot open it: {shown(gpu.handle_error)}.", subject=subject(gpu))


def per_gpu(judge: GpuCheck) -> Callable[[Facts, Row], Iterable[Finding]]:
    """Make a check of a function that judges one GPU: a finding for each, with it as the subject.

    A GPU that NVML could not open is unknown; one of another generation is skipped where the row
    is for Volta.
    """

    def judge_each(facts: Facts, row: Row) -> Iterable[Finding]:
        for gpu in gpus(facts):
            yield structs.replace(_judge(judge, facts, row, gpu), subject=subject(gpu))

    return judge_each


def _judge(judge: GpuCheck, facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    if gpu.handle_error:
        return unopened(row, gpu)
    try:
        if row.gpu == "volta" and not is_volta(gpu):
            name, capability = shown(gpu.name), shown(gpu.compute_capability)
            return row.skip(f"{name} is no Volta card (compute capability {capability}).")
        return judge(facts, row, gpu)
    except Inapplicable as reason:
        return row.skip(str(reason))
    except Missing as reason:
        return row.unknown(str(reason))
