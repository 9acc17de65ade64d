"""The architecture that a GGUF file's metadata tells (llama.cpp, gguf-py/gguf/constants.py)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from volta_runtime.checkpoint.architecture.shape import (
    LAYERS,
    Architecture,
    Layer,
    LayerKind,
    numbers,
    whole,
)

# By field of Architecture the key behind general.architecture; of lists by layer the greatest.
_KEYS: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "vocab_size": "vocab_size",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "v_head_dim": "attention.value_length",
    "max_position": "context_length",
    "window": "attention.sliding_window",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "linear_key_heads": "ssm.group_count",
    "linear_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel": "ssm.conv_kernel",
    "experts": "expert_count",
    "experts_per_token": "expert_used_count",
    "shared_experts": "expert_shared_count",
    "expert_size": "expert_feed_forward_length",
    "mtp_layers": "nextn_predict_layers",
}
_MAY_BE_NONE = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "heads",
    "kv_heads",
    "head_dim",
    "v_head_dim",
    "max_position",
    "window",
)
# Every n-th layer without a window, where the file does not say (llama.cpp, src/llama-model.cpp).
_UNWINDOWED = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4}


def from_gguf(metadata: Mapping[str, Any]) -> Architecture:
    """Return the architecture; of several parts the first part's metadata tells it."""
    name = metadata.get("general.architecture")
    prefix = name[:128] if isinstance(name, str) else ""

    def told(key: str) -> Any:
        return metadata.get(f"{prefix}.{key}")

    def size(key: str) -> int | None:
        by_layer = numbers(told(key))
        return max(by_layer) if by_layer else whole(told(key))

    sizes: dict[str, Any] = {field: size(key) for field, key in _KEYS.items()}
    sizes |= {k: 0 for k, v in sizes.items() if v is None and k not in _MAY_BE_NONE}
    heads, hidden = sizes["heads"], sizes["hidden_size"]
    sizes["kv_heads"] = heads if sizes["kv_heads"] is None else sizes["kv_heads"]
    if not sizes["head_dim"] and heads and hidden:
        sizes["head_dim"] = hidden // heads
    if sizes["kv_lora_rank"]:
        rope = size("rope.dimension_count") or 0
        whole_head = size("attention.key_length_mla") or 0
        sizes["qk_rope_head_dim"] = rope
        sizes["qk_nope_head_dim"] = max(0, whole_head - rope)
        sizes["v_head_dim"] = size("attention.value_length_mla") or sizes["v_head_dim"]
    inner, states = size("ssm.inner_size") or 0, sizes["linear_key_head_dim"]
    if inner and states:  # Mamba 1 has no groups: then each channel has a state of its own
        value_heads = sizes["linear_value_heads"] if sizes["linear_key_heads"] else inner
        sizes["linear_value_heads"] = value_heads
        sizes["linear_value_head_dim"] = inner // value_heads if value_heads else 0
    count = size("block_count") or 0
    count = count - sizes["mtp_layers"] if count <= LAYERS else 0
    mixers = _Mixers(
        states=bool(states),
        latent=bool(sizes["kv_lora_rank"]),
        window=bool(sizes["window"]),
        kv_heads=sizes["kv_heads"],
        own_kv_heads=numbers(told("attention.head_count_kv")),
        own_mlps=numbers(told("feed_forward_length")),
        windows=numbers(told("attention.sliding_window_pattern")),
        attention_every=size("full_attention_interval") or 1,
        unwindowed_every=whole(told("attention.sliding_window_pattern"))
        or _UNWINDOWED.get(prefix, 0),
    )
    dense, step = size("leading_dense_block_count") or 0, size("interleave_moe_layer_step") or 1
    routed = [n >= dense and (n + 1) % step == 0 for n in range(max(0, count))]
    layers = [
        Layer(mixers.kind(n), sizes["experts"] if has else 0, mixers.own(n))
        for n, has in enumerate(routed)
    ]
    return Architecture(model_type=prefix, layers=tuple(layers), **sizes)


class _Mixers(NamedTuple):
    """How the layers of a file mix tokens; lists are by layer, None where there is none."""

    states: bool
    latent: bool
    window: bool
    kv_heads: int | None
    own_kv_heads: list[int] | None
    own_mlps: list[int] | None
    windows: list[int] | None
    attention_every: int
    unwindowed_every: int

    def kind(self, n: int) -> LayerKind:
        """Of a layer, by its number."""
        if self.own(n) == 0:  # Nemotron-H's layers mix tokens or have an MLP, never both
            has_mlp = self.own_mlps and n < len(self.own_mlps) and self.own_mlps[n]
            return "linear" if self.states and not has_mlp else "none"
        if (n + 1) % self.attention_every:
            return "linear"
        if self.states and self.attention_every == 1 and self.own_kv_heads is None:
            return "hybrid" if self.kv_heads else "linear"
        if self.latent:
            return "mla"
        listed = self.windows and n < len(self.windows) and self.windows[n]
        every = self.unwindowed_every
        return "sliding" if self.window and (listed or (every and (n + 1) % every)) else "full"

    def own(self, n: int) -> int | None:
        """Return a layer's own number of KV heads, None where the model's holds."""
        listed = self.own_kv_heads
        return listed[n] if listed and n < len(listed) else None
