"""GPUs as texts name them: by number, by name, by capability, and by what is left out."""

from collections.abc import Sequence

from msgspec import structs

from volta_doctor.catalog import compat
from volta_doctor.checks.gpu import subject
from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.facts.pci import bus_id
from volta_doctor.logs.parts import section


def completed(facts: Facts, may_be_volta: bool) -> Facts:
    """Tell each GPU's number, and its capability: by its name, else Volta's where that may be.

    A matrix that nvidia-smi prints names GPUs by their index.
    """
    nvml, topo = facts.nvml.data, facts.topo.data
    if nvml is None:
        return facts
    assumed = compat().volta.compute_capability if may_be_volta else None
    told = [_with_capability(gpu, assumed) for gpu in _numbered(nvml.gpus)]
    found = {"nvml": section(structs.replace(nvml, gpus=told))}
    if topo:
        names = {f"GPU {gpu.index}": subject(gpu) for gpu in told}
        uuids = [names.get(uuid, uuid) for uuid in topo.uuids]
        found["topo"] = section(structs.replace(topo, uuids=uuids))
    return structs.replace(facts, **found)


def _with_capability(gpu: GpuFacts, assumed: str | None) -> GpuFacts:
    if gpu.compute_capability is not None:
        return gpu
    name = value(gpu.name)
    return structs.replace(gpu, compute_capability=capability_of(name) if name else assumed)


def _numbered(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Give each GPU without an index (readers set a negative one) the first number that is free."""
    taken = {gpu.index for gpu in gpus if gpu.index >= 0}
    free = (number for number in range(len(gpus) + len(taken)) if number not in taken)
    return [gpu if gpu.index >= 0 else structs.replace(gpu, index=next(free)) for gpu in gpus]


def capability_of(name: str) -> str | None:
    """Return the compute capability of a card by its name (compat.yaml), or of `7.0` itself."""
    words = " ".join(name.lower().replace("-", " ").split())
    known = compat().gpus
    return words if words in known.capabilities.values() else known.capability(words)


def names(gpus: Sequence[GpuFacts], name: str) -> set[str]:
    """Return all that a GPU is called by which the subject of a finding has this name."""
    found = {"", name}
    for gpu in gpus:
        if subject(gpu) == name:
            found.add(f"GPU {gpu.index}")
            found |= {bus_id(bus) for bus in [value(gpu.pci.bus_id)] if bus}
    return found
