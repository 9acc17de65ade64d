"""The hosts of a plan: their Volta cards and the links between them, from a flag or from facts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from volta_doctor.catalog import compat
from volta_doctor.facts.model import Facts, SnapshotError, decode
from volta_doctor.facts.nvml import NvmlFacts, value
from volta_doctor.facts.topo import TopoFacts
from volta_doctor.preflight.cards import Gpu, usable_gpus
from volta_provision.errors import StackError
from volta_provision.plan.inventory import is_inventory, snapshot_commands

SECTIONS = ("host", "pci", "nvml", "topo")


@dataclass(frozen=True)
class Host:
    """One host.

    gpus: those that can be used, of `count` in all. linked: pairs of indices (the lower first) that
    NVLink joins. notes: what is not used, and why. facts: of its snapshot, without data where a
    flag named the cards.
    """

    name: str
    told_by: str
    gpus: tuple[Gpu, ...]
    count: int
    linked: frozenset[tuple[int, int]]
    notes: tuple[str, ...] = ()
    facts: Facts = field(default_factory=Facts, compare=False)

    def is_linked(self, gpus: Sequence[Gpu]) -> bool:
        """Say whether each pair of these GPUs has an NVLink."""
        indices = sorted(gpu.index for gpu in gpus)
        return all((i, j) in self.linked for i in indices for j in indices if i < j)


def of_flag(model: str, count: int) -> Host:
    """Return an idle host with so many cards of one model."""
    card = compat().cards[model]
    gpus = tuple(Gpu(index, model, card.memory) for index in range(count))
    pairs = frozenset((i, j) for i in range(count) for j in range(i + 1, count))
    notes = ["NVLink between all GPUs is assumed"] if card.nvlink_gbs and count > 1 else []
    linked = pairs if card.nvlink_gbs else frozenset()
    return Host("", "--gpu", gpus, count, linked, tuple(notes))


def of_files(paths: Sequence[Path], idle: bool = False) -> list[Host]:
    """Read snapshots, one host each. Raises StackError naming the file and what is wrong with it.

    idle: as if no other process held memory.
    """
    hosts = []
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StackError(f"{path}: {error.strerror}") from error
        try:
            facts = decode(data).facts
        except SnapshotError as error:
            if is_inventory(data):
                raise StackError(
                    f"{path} is an Ansible inventory, and a plan needs the snapshots of its hosts:"
                    f" {snapshot_commands(path)}"
                ) from error
            raise StackError(
                f"{path}: {error}; `volta-doctor snapshot -o FILE` on a host makes one"
            ) from error
        hosts.append(of_facts(facts, str(path), idle))
    names = [host.name for host in hosts]
    return [
        replace(host, name=f"{host.name} ({host.told_by})") if names.count(host.name) > 1 else host
        for host in hosts
    ]


def of_facts(facts: Facts, source: str, idle: bool = False) -> Host:
    """Return the host that facts tell of. Raises StackError where they tell of no Volta card."""
    name = facts.host.data.hostname if facts.host.data else ""
    gpus, notes = usable_gpus(facts)
    if idle:
        gpus = [replace(gpu, used=0) for gpu in gpus]
    if not gpus:
        why = "; ".join(notes) or "no Volta card there"
        raise StackError(
            f"{source}: {why}; name the cards with --gpu and --count"
            f" (--gpu {', '.join(compat().cards)})"
        )
    told = _linked(facts, gpus) if len(gpus) > 1 else frozenset()
    if told is None:
        notes.append("how the GPUs are joined is not known: planned as if by PCIe")
    count = len(facts.nvml.data.gpus) if facts.nvml.data else len(gpus)
    linked = told or frozenset()
    return Host(
        name or source, source, tuple(gpus), count or len(gpus), linked, tuple(notes), facts
    )


def _linked(facts: Facts, gpus: Sequence[Gpu]) -> frozenset[tuple[int, int]] | None:
    """Pairs with an NVLink; None where it is not told and cannot be inferred."""
    if not any(gpu.card.nvlink_gbs for gpu in gpus):
        return frozenset()
    topo, nvml = facts.topo.data, facts.nvml.data
    if topo is None or nvml is None:
        return None
    places = _places(topo, nvml)
    return frozenset(
        (one.index, other.index)
        for one in gpus
        for other in gpus
        if one.index < other.index
        and {one.index, other.index} <= places.keys()
        and topo.links[places[one.index]][places[other.index]].startswith("NV")
    )


def _places(topo: TopoFacts, nvml: NvmlFacts) -> dict[int, int]:
    """Where a GPU stands in the matrix: by its UUID, and by its index where that is not told."""
    rows = {uuid: row for row, uuid in enumerate(topo.uuids)}
    return {
        gpu.index: rows.get(value(gpu.uuid) or "", gpu.index)
        for gpu in nvml.gpus
        if rows.get(value(gpu.uuid) or "", gpu.index) < len(topo.uuids)
    }
