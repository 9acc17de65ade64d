"""The GPUs that are meant: those of a flag, or those that the facts of a host tell."""

from volta_doctor.catalog import compat
from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.preflight.subject import Cards
from volta_doctor.profile import is_volta

SECTIONS = ("nvml", "pci")


def of_flag(model: str, count: int) -> Cards:
    """Return so many idle cards of a row of compat.yaml's `cards`."""
    return Cards(model, (compat().cards[model].memory,) * count, (0,) * count, "--gpu")


def of_facts(facts: Facts) -> Cards | None:
    """Return a host's Volta cards, None where it tells of none.

    Without a driver the bus tells which they are, and their data sheets how much memory they have.
    """
    volta = compat().volta.compute_capability
    gpus = facts.nvml.data.gpus if facts.nvml.data else []
    sizes = [
        (_model(gpu), total, value(gpu.memory.used) or 0)
        for gpu in gpus
        if value(gpu.compute_capability) == volta and (total := value(gpu.memory.total))
    ]
    told_by = "NVML"
    if not sizes and facts.pci.data:
        known = [compat().card(device.device[-4:]) for device in facts.pci.data.gpus
                 if is_volta(device)]  # fmt: skip
        sizes = [(model, compat().cards[model].memory, 0) for model in known if model]
        told_by = "the PCI bus and data sheets"
    if not sizes:
        return None
    models = {model for model, _, _ in sizes}
    return Cards(
        models.pop() if len(models) == 1 else "",
        tuple(total for _, total, _ in sizes),
        tuple(used for _, _, used in sizes),
        told_by,
    )


def _model(gpu: GpuFacts) -> str:
    return compat().card((value(gpu.pci.device_id) or "").removeprefix("0x")[:4]) or ""
