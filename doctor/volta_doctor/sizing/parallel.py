"""What a tensor-parallel size must divide: heads, sizes, groups, experts; and what falls off tiles.

A rank is one GPU's process of those that share every layer.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.sizing.split import (
    TILE_K,
    TILE_N,
    Role,
    Split,
    local,
    matrix,
    padded,
    role_of,
)
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.architecture import Architecture
from volta_runtime.checkpoint.fused import FUSED

SIZES = range(1, 17)
_HALF_BITS = 16
KV_HEADS = "num_key_value_heads"


class Part(NamedTuple):
    """Modules that are split alike: the first one's name, and how many are alike.

    group: weights along K that share a scale, 0 for none, a whole row or the whole tensor; rows:
    weights along N that do. packed: whether the weight is in fewer bits than 16.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    group: int
    rows: int
    packed: bool
    alike: int


class Uneven(NamedTuple):
    """Something that does not divide: a module or a field of the config, and why."""

    subject: str
    text: str


@lru_cache(maxsize=1)  # of tens of thousands of modules, asked for by many checks
def parts_of(checkpoint: Checkpoint) -> list[Part]:
    """Return the modules of all layers, each kind once."""
    a = checkpoint.architecture
    found: dict[tuple[object, ...], Part] = {}
    for name, module in checkpoint.modules.items():
        role = role_of(name, a)
        packed = module.format is not None and module.format.bits < _HALF_BITS
        if role.mtp or role.tower or (packed and len(module.shape) < 2):  # of no shape that is told
            continue
        rows, group = module.group or (0, 0)
        key = (role._replace(layer=None), module.shape, group, rows, packed)
        part = Part(name, role, module.shape, group, rows, packed, 1)
        if seen := found.get(key):
            first = min(seen, part, key=_order)
            part = first._replace(alike=seen.alike + 1)
        found[key] = part
    return list(found.values())


def _order(part: Part) -> tuple[int, int, str]:
    """Shards may hold layers in any order; the first of each kind are then of one layer."""
    return part.role.layer or 0, len(part.name), part.name


def uneven_heads(counts: Mapping[str, int], ranks: int) -> Iterator[Uneven]:
    """Attention is split by whole heads; of KV heads a rank may also hold a copy.

    counts: the heads by the field of config.json that tells them.
    """
    for name, count in counts.items():
        if name == KV_HEADS:
            if count % ranks and ranks % count:
                text = (
                    f"{name} {count} neither divides tensor-parallel size {ranks} nor is divided by"
                    " it."
                )
                yield Uneven(name, text)
        elif count % ranks:
            yield Uneven(name, f"{name} {count} is no multiple of tensor-parallel size {ranks}.")


def uneven_groups(name: str, size: int, group: int, ranks: int) -> Uneven | None:
    """Of a layer that is split by its inputs a rank must hold whole groups of them."""
    if size % ranks == 0 and size // ranks % group == 0:
        return None
    groups = f"{size // group} groups" if size % group == 0 else f"{size / group:g} groups"
    text = (
        f"{name} {size} / tensor-parallel size {ranks} = {size / ranks:g} is no multiple of group"
        f" size {group}: {groups} do not divide by {ranks}."
    )
    return Uneven(name, text)


def heads_of(a: Architecture) -> dict[str, int]:
    """Return the numbers of heads that are split, by the fields that usually tell them."""
    counts = {
        "num_attention_heads": a.heads,
        KV_HEADS: None if a.kv_lora_rank else a.kv_heads,
        "linear_num_key_heads": a.linear_key_heads,
        "linear_num_value_heads": a.linear_value_heads,
    }
    return {name: count for name, count in counts.items() if count}


def group_faults(parts: Iterable[Part], ranks: int, within_expert: int) -> Iterator[Uneven]:
    """Yield the layers of which a rank would not hold whole groups.

    within_expert: the ranks that split one expert. A block of FP8 is a group of outputs too.
    """
    for part in parts:
        split = within_expert if part.role.expert else ranks
        _, (n, k) = matrix(part.shape, part.role)
        alike = f" ({part.alike} alike)" if part.alike > 1 else ""
        if split == 1:  # whole as it is stored; the last block of a side may be a part of one
            continue
        if part.role.side == "row" and part.group > 1:
            found = uneven_groups(f"{part.name}: inputs{alike}", k, part.group, split)
        elif part.role.side == "column" and part.rows > 1:
            found = uneven_groups(f"{part.name}: outputs{alike}", n, part.rows, split)
        else:
            continue
        if found:
            yield found._replace(subject=part.name)


def size_faults(parts: Iterable[Part], ranks: int) -> Iterator[Uneven]:
    """Yield the layers whose split side does not divide (vLLM distributed/utils.py: divide)."""
    for part in parts:
        _, (n, k) = matrix(part.shape, part.role)
        size = {"column": n, "row": k}.get(part.role.side, 0)
        if size % ranks and not part.role.expert:
            side = "outputs" if part.role.side == "column" else "inputs"
            text = (
                f"{size} {side} of {part.name} are no multiple of tensor-parallel size {ranks}"
                f" ({part.alike} such)."
            )
            yield Uneven(part.name, text)


def expert_faults(parts: Iterable[Part], a: Architecture, split: Split) -> Iterator[Uneven]:
    """Yield what is uneven of the experts: their own sizes, or their number where dealt out."""
    if split.expert > 1 and a.experts % split.expert:
        each, rest = divmod(a.experts, split.expert)
        text = (
            f"{a.experts} experts on {split.expert} ranks:"
            f" {rest} ranks hold {each + 1}, the others {each}."
        )
        yield Uneven("num_experts", text)
    for part in parts:
        _, (n, k) = matrix(part.shape, part.role)
        size = {"column": n, "row": k}.get(part.role.side, 0)
        if part.role.expert and size % split.within_expert:
            text = (
                f"An expert's {size} of {part.name} is no multiple of tensor-parallel size"
                f" {split.within_expert}."
            )
            yield Uneven(part.name, text)


def off_tile(parts: Iterable[Part], a: Architecture, split: Split) -> Iterator[Uneven]:
    """Yield packed layers of which a rank's part is no whole number of tiles.

    Parts that engines join are one layer here: gate and up, q, k and v, and all of a gated delta
    net's inputs (1Cat-vLLM fuses these, so that 27B models have 4120 outputs a rank at 4).
    """
    joined: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        if part.packed and part.role.side not in ("copy", "vocab"):
            parent, _, last = part.name.rpartition(".")
            joined.setdefault((parent, _layer(last)), []).append(part)
    for (parent, _), members in joined.items():
        shapes = [local(part.shape, part.role, split, a) for part in members]
        n, k = sum(shape[-2] for shape in shapes), shapes[0][-1]
        names = "+".join(part.role.part for part in members)
        for size, tile, side in ((n, TILE_N, "outputs"), (k, TILE_K, "inputs")):
            if size % tile:
                text = (
                    f"A rank has {size} {side} of {parent}.{names}, no multiple of the tile of"
                    f" {tile}: they must be padded to {padded(size, tile)} in memory."
                )
                yield Uneven(members[0].name, text)


def _layer(part: str) -> str:
    if part.startswith("in_proj_"):
        return "in_proj"
    return next((layer for layer, names in FUSED.items() if part in names), part)


def sizes_that_work(checkpoint: Checkpoint, parts: list[Part] | None = None) -> list[int]:
    """Return the tensor-parallel sizes of 1 to 16 that divide all that must be divided."""
    parts = parts_of(checkpoint) if parts is None else parts
    a = checkpoint.architecture
    heads = heads_of(a)
    return [
        size
        for size in SIZES
        if not any(uneven_heads(heads, size))
        and not any(group_faults(parts, size, size))
        and not any(size_faults(parts, size))
        and not any(expert_faults(parts, a, Split(size)))
    ]
