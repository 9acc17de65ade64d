"""What a model keeps of the past, in bytes on each GPU: keys, values, latents, states."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from volta_doctor.facts.model import Missing
from volta_doctor.sizing.split import Split, padded
from volta_runtime.checkpoint.architecture import Architecture, Layer

_STATE_BYTES = 4  # of a recurrent state's value: FP32 (Qwen3.5 mamba_ssm_dtype; llama.cpp too)
_CONV_BYTES = 2  # of a convolution's past inputs
_KEEPS = ("full", "sliding", "hybrid", "mla")


class Kept(NamedTuple):
    """Layers that keep alike: bytes a token, the longest past, and tokens that share an entry."""

    width: float
    window: int | None
    compress: int


@dataclass(frozen=True)
class Cache:
    """What one GPU keeps. state: bytes a sequence; block: tokens of a page."""

    layers: Counter[Kept]
    state: int
    block: int

    @property
    def per_token(self) -> float:
        """Bytes of one token while no window is full."""
        return sum(kept.width / kept.compress * count for kept, count in self.layers.items())

    def sequence(self, tokens: int) -> int:
        """Bytes of the keys and values of one sequence of so many tokens."""
        total = 0.0
        for kept, count in self.layers.items():
            held = tokens if kept.window is None else min(tokens, kept.window)
            held = padded(-(-held // kept.compress), self.block)
            total += count * kept.width * held
        return int(total)


def caches(
    architecture: Architecture,
    split: Split,
    places: Sequence[int],
    *,
    value_bytes: float,
    block: int,
    step: int,
) -> list[Cache]:
    """Return what each GPU keeps.

    places: the stage of each layer where there are several. step: tokens that a pass adds, and
    that a window holds on top of its own (vLLM SlidingWindowSpec.max_memory_usage_bytes; llama.cpp
    n_swa + n_ubatch). Raises Missing naming what the model does not tell.
    """
    if not architecture.layers:
        raise Missing("The model does not tell how many layers it has.")
    ranks = split.ranks
    layers, states = [Counter[Kept]() for _ in range(split.depth)], [0] * split.depth
    for number, layer in enumerate(architecture.layers):
        stage = places[number] if places else 0
        if layer.kind in _KEEPS:
            window = architecture.window if layer.kind == "sliding" else None
            width = token_values(architecture, layer, ranks) * value_bytes
            kept = Kept(width, window and window + step, layer.compress or 1)
            if layer.compress != 0:
                layers[stage][kept] += 1
            if layer.compress != 1 and architecture.window:  # a window of whole tokens beside it
                layers[stage][Kept(width, architecture.window + step, 1)] += 1
        if layer.kind in ("linear", "hybrid"):
            states[stage] += state_bytes(architecture, ranks)
    return [
        Cache(kinds, state, block)
        for kinds, state in zip(layers, states, strict=True)
        for _ in range(split.width)
    ]


def token_values(architecture: Architecture, layer: Layer, ranks: int) -> int:
    """Values that a rank keeps of one token in one layer.

    MLA's latent and its rope part are one vector for all heads, so every rank has it whole; of KV
    heads a rank has at least one. Raises Missing naming what the model does not tell.
    """
    if layer.kind == "mla":
        return architecture.kv_lora_rank + architecture.qk_rope_head_dim
    heads = architecture.kv_heads if layer.kv_heads is None else layer.kv_heads
    dim = layer.head_dim or architecture.head_dim
    if heads is None or dim is None:
        name = "KV heads" if heads is None else "the size of a head"
        raise Missing(f"The model does not tell its {name}.")
    values = dim if layer.head_dim else architecture.v_head_dim or dim
    return max(1, -(-heads // ranks)) * (dim + values) if heads else 0


def state_bytes(architecture: Architecture, ranks: int) -> int:
    """Bytes that a linear layer keeps of one sequence on a rank.

    A state of key size x value size for each value head, and the convolution's last inputs (vLLM
    mamba_utils.py: gated_delta_net_state_shape, mamba2_state_shape).
    """
    a = architecture
    keys = a.linear_key_heads * a.linear_key_head_dim
    values = a.linear_value_heads * a.linear_value_head_dim
    width = 2 * keys + values or a.hidden_size or 0  # LFM2 has the convolution alone
    states = a.linear_value_heads * a.linear_value_head_dim * a.linear_key_head_dim
    past = width * max(0, a.linear_conv_kernel - 1)
    return -(-states // ranks) * _STATE_BYTES + -(-past // ranks) * _CONV_BYTES
