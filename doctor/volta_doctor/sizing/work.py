"""What a model reads and computes: bytes and weights by format, of experts and of all else."""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from volta_doctor.facts.model import Missing
from volta_doctor.sizing.cache import caches
from volta_doctor.sizing.split import Split, role_of
from volta_runtime.checkpoint import Checkpoint
from volta_runtime.checkpoint.architecture import Architecture, Layer

_NEEDED = ("layers", "hidden_size", "heads", "kv_heads", "head_dim")


@dataclass(frozen=True)
class Amount:
    """Bytes in GPU memory, and weights, by the name of their format."""

    bytes: Counter[str] = field(default_factory=Counter)
    weights: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Work:
    """What a step computes with, over all GPUs.

    always: what every token needs, but for the head. head: what each generated token needs beside.
    experts: all routed experts, of which a token needs `chosen` (a share).
    """

    architecture: Architecture
    always: Amount
    head: Amount
    experts: Amount
    chosen: float

    def touched(self, tokens: int) -> float:
        """The share of the experts that so many tokens need, where each chooses by chance."""
        return 1 - (1 - self.chosen) ** tokens

    @property
    def formats(self) -> set[str]:
        """The formats that there are."""
        return {name for part in (self.always, self.head, self.experts) for name in part.bytes}


@lru_cache(maxsize=1)  # of tens of thousands of modules, asked for by many plans
def work_of(checkpoint: Checkpoint) -> Work:
    """Count a model's modules. Raises Missing naming what the checkpoint does not tell."""
    a = checkpoint.architecture
    if absent := [name for name in _NEEDED if not getattr(a, name)]:
        raise Missing(f"The model does not tell its {', '.join(absent)}.")
    always, head, experts, embedding = Amount(), Amount(), Amount(), Amount()
    for name, module in checkpoint.modules.items():
        role = role_of(name, a)
        if role.tower or role.mtp or module.format is None:
            continue
        whole = {role.expert: experts, role.input: embedding, role.head: head}.get(True, always)
        whole.weights[module.format.name] += math.prod(module.shape)
        whole.bytes[module.format.name] += module.format.device_bytes(module.tensors)
    if not always.weights:
        raise Missing(f"{checkpoint.path} does not tell the shapes of its weights.")
    if experts.weights and not (a.experts and a.experts_per_token):
        raise Missing("The model does not tell how many experts a token goes to.")
    chosen = min(1.0, a.experts_per_token / a.experts) if experts.weights else 0.0
    return Work(a, always, embedding if a.tied else head, experts, chosen)


def past_bytes(a: Architecture, context: int, value_bytes: float, ranks: int) -> float:
    """What one sequence's token reads of its past on each of the ranks that share a layer."""
    kept = caches(a, Split(ranks), (), value_bytes=value_bytes, block=1, step=0)[0]
    return kept.sequence(context) + 2 * kept.state  # a state is read and written


def attention_flops(a: Architecture, prompt: int) -> float:
    """Operations of attention for one token of a prompt, on average over its tokens."""
    return sum(_layer_flops(a, layer, prompt) for layer in a.layers)


def _layer_flops(a: Architecture, layer: Layer, prompt: int) -> float:
    heads, seen = a.heads or 0, prompt / 2
    if layer.kind == "mla":
        return 2 * heads * (2 * a.kv_lora_rank + a.qk_rope_head_dim) * seen
    total = 0.0
    if layer.kind in ("full", "sliding", "hybrid"):
        if layer.kind == "sliding" and a.window:
            seen = min(seen, a.window)
        total += 4 * heads * (layer.head_dim or a.head_dim or 0) * seen
    if layer.kind in ("linear", "hybrid"):  # decay, take the key's part out, put in, read
        total += 6 * a.linear_value_heads * a.linear_key_head_dim * a.linear_value_head_dim
    return total
