"""Numbers for GPUs of which an excerpt does not tell the index: readers give them negative ones."""

from collections.abc import Sequence

from msgspec import structs

from volta_doctor.checks.gpu import subject
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.facts.pci import bus_id


def numbered(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Give each GPU without an index the first number that is free."""
    taken = {gpu.index for gpu in gpus if gpu.index >= 0}
    free = (number for number in range(len(gpus) + len(taken)) if number not in taken)
    return [gpu if gpu.index >= 0 else structs.replace(gpu, index=next(free)) for gpu in gpus]


def names(gpus: Sequence[GpuFacts], name: str) -> set[str]:
    """Return all that a GPU is called by which the subject of a finding has this name."""
    found = {"", name}
    for gpu in gpus:
        if subject(gpu) == name:
            found.add(f"GPU {gpu.index}")
            found |= {bus_id(bus) for bus in [value(gpu.pci.bus_id)] if bus}
    return found
