"""How many bytes of weights lie on each GPU, from the tensors that are there."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from volta_doctor.facts.model import Missing
from volta_doctor.sizing.split import (
    TILE_K,
    TILE_N,
    VOCAB_TILE,
    Role,
    Split,
    local,
    padded,
    role_of,
)
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.architecture import Architecture
from volta_runtime.checkpoint.module import Module

_HALF_BITS = 16


class Kind(NamedTuple):
    """Modules that are alike in all that their size follows from."""

    role: Role
    shape: tuple[int, ...]
    bytes: int
    packed: bool


@dataclass(frozen=True)
class Weights:
    """A model's modules, counted; bytes are those in GPU memory before any split.

    parameters: elements of all of them. packed_bytes, packed: of those in fewer bits than 16.
    skipped: bytes of multi-token prediction, which is loaded for speculative decoding alone.
    estimated: why they are not counted but estimated, empty where they are.
    """

    architecture: Architecture
    kinds: Counter[Kind]
    parameters: int = 0
    packed: int = 0
    packed_bytes: int = 0
    skipped: int = 0
    estimated: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of all that is loaded, on one GPU."""
        return sum(kind.bytes * count for kind, count in self.kinds.items())


@lru_cache(maxsize=1)  # of tens of thousands of modules, asked for by checks and plans
def weights_of(checkpoint: Checkpoint) -> Weights:
    """Count the modules of a checkpoint. Raises Missing where it does not tell their sizes."""
    architecture = checkpoint.architecture
    if checkpoint.contents.kind == "index":
        return _estimated(architecture, checkpoint.contents.total_size)
    if not checkpoint.modules:
        raise Missing(f"{checkpoint.path} holds no weights that can be read.")
    roles = {name: role_of(name, architecture) for name in checkpoint.modules}
    tied = architecture.tied and any(role.input for role in roles.values())
    kinds: Counter[Kind] = Counter()
    parameters = packed = packed_bytes = skipped = 0
    for name, module in checkpoint.modules.items():
        role = roles[name]
        if role.head and tied:  # the embedding is used in its place
            continue
        size, is_packed = _on_gpu(module)
        if role.mtp:
            skipped += size
            continue
        elements = math.prod(module.shape)
        parameters += elements
        packed += elements if is_packed else 0
        packed_bytes += size if is_packed else 0
        kinds[Kind(role, module.shape, size, is_packed)] += 1
    return Weights(architecture, kinds, parameters, packed, packed_bytes, skipped)


def _estimated(a: Architecture, total: int | None) -> Weights:
    """Spread the index's total over the layers, but for embedding and head in 16 bits."""
    if not total or not a.layers:
        raise Missing("The index does not tell the size of the weights, or the config the layers.")
    table = (a.vocab_size or 0) * (a.hidden_size or 0)
    kinds: Counter[Kind] = Counter()
    ends = [Role("vocab", None, "embed_tokens", input=True)]
    ends += [] if a.tied else [Role("vocab", None, "lm_head", head=True)]
    for role in ends:
        kinds[Kind(role, (a.vocab_size or 0, a.hidden_size or 0), 2 * table, False)] += 1
    each = max(0, total - 2 * table * len(ends)) // len(a.layers)
    for number in range(len(a.layers)):
        kinds[Kind(Role("column", number, "layer"), (each,), each, False)] += 1
    text = "Only the index is there: its total is taken to be the layers', split evenly."
    return Weights(a, kinds, estimated=text)


def _on_gpu(module: Module) -> tuple[int, bool]:
    """Return a module's bytes in GPU memory, and whether its weight is packed in fewer bits."""
    if module.format is None:
        return module.bytes, False
    return module.format.device_bytes(module.tensors), module.format.bits < _HALF_BITS


def by_gpu(weights: Weights, split: Split, places: Sequence[int]) -> list[tuple[int, int]]:
    """Return bytes of layers, and of embedding and head, on each GPU.

    places: the stage of each layer where there are several. The first looks tokens up, the last
    makes the logits; llama.cpp looks them up in the host's memory.
    """
    layers, ends = [0] * split.depth, [0] * split.depth
    tied = weights.architecture.tied
    for kind, count in weights.kinds.items():
        role = kind.role
        size = count * _local_bytes(kind, split, weights.architecture)
        if role.side == "vocab":
            stages = {-1 if role.head else 0, *([-1] if role.input and tied else [])}
            stages -= {0} if split.by_layer and role.input else set()
            for stage in {stage % split.depth for stage in stages}:
                ends[stage] += size
        elif role.layer is not None and places:
            layers[places[role.layer]] += size
        else:
            layers[-1 if role.part.startswith(("norm", "output")) else 0] += size
    return [pair for pair in zip(layers, ends, strict=True) for _ in range(split.width)]


def _local_bytes(kind: Kind, split: Split, architecture: Architecture) -> int:
    """Bytes of the fullest rank's part, padded to tiles where it is packed."""
    role, shape = kind.role, kind.shape
    whole = math.prod(shape)
    if not whole or split.by_layer or (split.width == 1 and not kind.packed):
        return kind.bytes
    *front, n, k = local(shape, role, split, architecture)
    if role.expert and not front:  # stored one by one: a rank has its share of them
        return -(-kind.bytes * _tiled(n, k, kind.packed) // (whole * split.expert))
    if role.side == "vocab":
        n = padded(n, VOCAB_TILE)
    return -(-kind.bytes * math.prod(front) * _tiled(n, k, kind.packed) // whole)


def _tiled(n: int, k: int, packed: bool) -> int:
    return padded(n, TILE_N) * padded(k, TILE_K) if packed else n * k
