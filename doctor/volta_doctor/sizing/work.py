"""What a model reads and computes: bytes and weights by format, of experts and of all else."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from volta_doctor.facts.model import Missing
from volta_runtime.checkpoint.architecture import Architecture, Layer
from volta_runtime.checkpoint.module import Module

_STATE_BYTES = 4  # of linear attention: float32

# A module's part, by its name: the first that fits. What is left is read for every token.
_EXPERTS = re.compile(r"(?:^|\.)experts(?:\.|$)|_exps(?:\.|$)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|embed_in|token_embd)$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)$|^output$")
_ASIDE = re.compile(r"(?:^|\.)(?:visual|vision\w*|mtp\w*|audio\w*|multi_modal\w*|mm)(?:\.|$)")


@dataclass
class Amount:
    """Bytes in GPU memory, and weights, by the name of their format."""

    bytes: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    weights: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, module: Module, name: str) -> None:
        """Count a module under a format's name."""
        count = 1
        for size in module.shape:
            count *= size
        self.weights[name] += count
        # Whatever is not quantised lies in FP16.
        self.bytes[name] += 2 * count if name == "dense" else module.bytes

    def __bool__(self) -> bool:
        return bool(self.weights)


@dataclass(frozen=True)
class Work:
    """What a step computes with, over all GPUs.

    always: what every token needs, without the head. head: what each generated token needs beside.
    experts: all routed experts, of which a token needs `chosen` (a share).
    """

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


def work(modules: Mapping[str, Module], architecture: Architecture) -> Work:
    """Count a model's modules. Raises Missing where they or the experts in use are not known."""
    always, head, experts, embedding = Amount(), Amount(), Amount(), Amount()
    for name, module in modules.items():
        if _ASIDE.search(name):
            continue
        parts = ((_EXPERTS, experts), (_EMBEDDING, embedding), (_HEAD, head))
        part = next((part for pattern, part in parts if pattern.search(name)), always)
        part.add(module, module.format.name if module.format else "unknown")
    if not always:
        raise Missing("the checkpoint's tensors are not known")
    a = architecture
    if experts and not (a.experts and a.experts_per_token):
        raise Missing("config.json does not tell how many experts a token uses")
    chosen = a.experts_per_token / a.experts if experts else 0.0
    return Work(always, head or embedding, experts, min(1.0, chosen))


def cache_bytes(a: Architecture, context: int, value_bytes: float, split: int) -> float:
    """What one sequence's token reads of its past, in bytes on each of `split` GPUs."""
    total = 0.0
    for layer in a.layers:
        heads, dim = _heads(a, layer)
        if layer.kind == "mla":  # every rank holds the latent vector whole
            total += (a.kv_lora_rank + a.qk_rope_head_dim) * context * value_bytes
        elif layer.kind in ("full", "sliding", "hybrid"):
            seen = _seen(a, layer, context)
            total += 2 * heads * dim * seen * value_bytes / min(split, max(1, heads))
        if layer.kind in ("linear", "hybrid"):  # the state is read and written
            total += 2 * _state(a) * _STATE_BYTES / split
    return total


def attention_flops(a: Architecture, prompt: int) -> float:
    """Operations of attention for one token of a prompt, on average over its tokens."""
    total = 0.0
    for layer in a.layers:
        if layer.kind == "mla":
            width = 2 * a.kv_lora_rank + a.qk_rope_head_dim
            total += 2 * (a.heads or 0) * width * prompt / 2
        elif layer.kind in ("full", "sliding", "hybrid"):
            _, dim = _heads(a, layer)
            total += 4 * (a.heads or 0) * dim * min(_seen(a, layer, prompt), prompt / 2)
        if layer.kind in ("linear", "hybrid"):
            total += 6 * _state(a)  # decay, the key's part taken out, the value's put in, read
    return total


def missing(a: Architecture) -> Iterator[str]:
    """Yield the names of what config.json does not tell and a speed cannot do without."""
    for name in ("layers", "hidden_size", "heads", "kv_heads", "head_dim"):
        if not getattr(a, name):
            yield name


def _heads(a: Architecture, layer: Layer) -> tuple[int, int]:
    return layer.kv_heads or a.kv_heads or 0, layer.head_dim or a.head_dim or 0


def _seen(a: Architecture, layer: Layer, context: int) -> int:
    return min(context, a.window) if layer.kind == "sliding" and a.window else context


def _state(a: Architecture) -> int:
    return a.linear_value_heads * a.linear_key_head_dim * a.linear_value_head_dim
