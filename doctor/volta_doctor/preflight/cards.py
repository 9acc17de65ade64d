"""The GPUs that are meant: those of a flag, or those that the facts of a host tell."""

from collections.abc import Sequence
from dataclasses import dataclass

from volta_doctor.catalog import compat
from volta_doctor.catalog.compatibility import Card
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts, value
from volta_doctor.preflight.subject import Cards
from volta_doctor.profile import is_volta

SECTIONS = ("nvml", "pci")


@dataclass(frozen=True)
class Gpu:
    """A Volta card with a data sheet.

    index: as NVML and nvidia-smi count. model: a row of compat.yaml's `cards`. total, used: bytes,
    the latter what other processes hold.
    """

    index: int
    model: str
    total: int
    used: int = 0

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.total - self.used

    @property
    def card(self) -> Card:
        """Its data sheet."""
        return compat().cards[self.model]


def of_flag(model: str, count: int) -> Cards:
    """Return so many idle cards of a row of compat.yaml's `cards`."""
    return Cards(model, (compat().cards[model].memory,) * count, (0,) * count, "--gpu")


def of_facts(facts: Facts) -> Cards | None:
    """Return a host's Volta cards, None where it tells of none that can be used."""
    gpus, _ = usable_gpus(facts)
    if not gpus:
        return None
    models = {gpu.model for gpu in gpus}
    return Cards(
        models.pop() if len(models) == 1 else "",
        tuple(gpu.total for gpu in gpus),
        tuple(gpu.used for gpu in gpus),
        "NVML" if _answers(facts) else "the PCI bus and data sheets",
    )


def usable_gpus(facts: Facts) -> tuple[Sequence[Gpu], list[str]]:
    """Return a host's Volta cards that can be used, and notes: which others cannot, and why.

    Without a driver the bus tells which they are, and their data sheets how much memory they have.
    """
    if not _answers(facts):
        return _of_pci(facts)
    gpus, notes = [], []
    for gpu in facts.nvml.need().gpus:
        found = _gpu(gpu)
        if isinstance(found, Gpu):
            gpus.append(found)
        else:
            notes.append(f"GPU {gpu.index} is not used: {found}")
    return gpus, notes


def _answers(facts: Facts) -> bool:
    nvml = facts.nvml.data
    return nvml is not None and not nvml.init_error and bool(nvml.gpus)


def _gpu(gpu: GpuFacts) -> Gpu | str:
    """One GPU, or why it cannot be used."""
    if gpu.handle_error:
        return f"NVML cannot open it: {gpu.handle_error}"
    title = value(gpu.name) or "a GPU without a name"
    device = (value(gpu.pci.device_id) or "").removeprefix("0x")[:4].lower()
    model = compat().card(device)
    capability = value(gpu.compute_capability)
    if model is None and capability == compat().volta.compute_capability:
        return (
            f"{title} (10de:{device or '?'}) has no data sheet here; --gpu takes the nearest card"
        )
    if model is None:
        return f"{title} is no Volta card"
    total = value(gpu.memory.total) or compat().cards[model].memory
    return Gpu(gpu.index, model, total, value(gpu.memory.used) or 0)


def _of_pci(facts: Facts) -> tuple[Sequence[Gpu], list[str]]:
    try:
        cards = facts.pci.need().gpus
    except Missing as reason:
        return [], [f"neither NVML nor the PCI bus tells its GPUs: {reason}"]
    gpus = [
        Gpu(index, model, compat().cards[model].memory)
        for index, device in enumerate(filter(is_volta, cards))
        if (model := compat().card(device.device.removeprefix("0x")))
    ]
    error = facts.nvml.data.init_error if facts.nvml.data else None
    if gpus:
        why = f"NVML does not answer ({error or facts.nvml.error})"
        return gpus, [f"{why}: memory is that of the data sheets, all of it free"]
    return [], [f"NVML does not answer: {error}"] if error else []
