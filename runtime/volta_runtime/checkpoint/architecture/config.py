"""config.json in the dialects that models write it in."""

from collections.abc import Mapping
from typing import Any

from volta_runtime.checkpoint.architecture.layers import experts_of, kinds_of
from volta_runtime.checkpoint.architecture.shape import Architecture, Layer, numbers, whole

Fields = Mapping[str, Any]

# Where models of several kinds keep the text model's own fields.
WRAPPERS = ("text_config", "llm_config", "language_config", "thinker_config")
_VISION = ("vision_config", "visual", "vision_tower_config", "vit_config", "vision_model")

# By field of Architecture the names that config.json has for it; the first that is there counts.
SIZES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "intermediate_size": (
        "intermediate_size",
        "ffn_hidden_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "decoder_ffn_dim",
        "intermediate_size_mlp",
    ),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_attention_groups",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "max_position": (
        "max_position_embeddings",
        "model_max_length",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "n_ctx",
        "max_target_positions",
    ),
    "window": ("sliding_window", "sliding_window_size", "attention_window_size"),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "linear_key_heads": ("linear_num_key_heads", "n_groups", "mamba_n_groups"),
    "linear_value_heads": ("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads"),
    "linear_key_head_dim": ("linear_key_head_dim", "ssm_state_size", "mamba_d_state", "state_size"),
    "linear_value_head_dim": ("linear_value_head_dim", "mamba_head_dim", "mamba_d_head"),
    "linear_conv_kernel": ("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", "conv_L_cache"),
    "experts": (
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
        "num_moe_experts",
    ),
    "experts_per_token": (
        "num_experts_per_tok",
        "experts_per_token",
        "num_experts_per_token",
        "moe_k",
        "moe_topk",
        "moe_top_k",
    ),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "expert_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "mtp_layers": (
        "num_nextn_predict_layers",
        "mtp_num_hidden_layers",
        "num_mtp_layers",
        "num_mtp_modules",
    ),
}
_OR_ZERO = frozenset(
    name for name, value in vars(Architecture).items() if value == 0 and isinstance(value, int)
)  # fields whose absence means that the model has no such thing

# What classes of transformers 5.24 take for fields that released configs leave out.
_DELTA_NET = {
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_GEMMA_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_DEFAULTS: Mapping[str, Fields] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "cohere2": {"sliding_window_pattern": 4},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
    "qwen3_next": _DELTA_NET,
    "qwen3_5_text": _DELTA_NET,
    "qwen3_5_moe_text": _DELTA_NET,
    "qwen3_5": _DELTA_NET,
    "qwen3_5_moe": _DELTA_NET,
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "nemotron_h": {"head_dim": 128},
    # Their sliding_window is written out and meant only where use_sliding_window is true.
    **{
        name: {"use_sliding_window": False}
        for name in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl")
    },
}
_TIED_BY_DEFAULT = ("gemma", "cohere", "command", "gpt2", "bloom", "falcon", "opt")

_DTYPES = {
    "float16": "F16",
    "half": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float": "F32",
    "float64": "F64",
}


def from_config(config: Fields) -> Architecture:
    """Return the architecture that a config.json tells."""
    text = text_fields(config)
    sizes: dict[str, Any] = {field: _first(text, names) for field, names in SIZES.items()}
    sizes |= {name: 0 for name, size in sizes.items() if size is None and name in _OR_ZERO}
    sizes |= _derived(text, sizes)
    kinds = kinds_of(text, bool(sizes["window"]), bool(sizes["kv_lora_rank"]))
    experts = experts_of(text, len(kinds), sizes["experts"])
    tied = text.get("tie_word_embeddings")
    model_type = _word(text.get("model_type"))
    names = config.get("architectures")
    return Architecture(
        model_type=model_type,
        names=tuple(map(_word, names[:8])) if isinstance(names, list) else (),
        layers=tuple(
            Layer(kind, count, *_own(text, number, kind))
            for number, (kind, count) in enumerate(zip(kinds, experts, strict=True))
        ),
        tied=tied if isinstance(tied, bool) else model_type.startswith(_TIED_BY_DEFAULT),
        dtype=_DTYPES.get(_word(text.get("dtype") or text.get("torch_dtype"))),
        vision=any(isinstance(config.get(name), Mapping) for name in _VISION),
        **sizes,
    )


def text_fields(config: Fields) -> Fields:
    """Return the text model's fields, those of the file beneath them, and its class's defaults."""
    text = dict(config)
    for name in WRAPPERS * 2:  # Qwen's thinker has a text_config of its own
        inner = text.pop(name, None)
        if isinstance(inner, Mapping):
            text |= inner
    return {**_DEFAULTS.get(_word(text.get("model_type")), {}), **text}


def _first(text: Fields, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = text.get(name)
        by_layer = numbers(value)
        if (found := max(by_layer) if by_layer else whole(value)) is not None:
            return found
    return None


def _derived(text: Fields, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that follow from others, or are told in a way of their own."""
    found: dict[str, Any] = {}
    heads, hidden = sizes["heads"], sizes["hidden_size"]
    if not sizes["kv_heads"]:
        found["kv_heads"] = 1 if text.get("multi_query") is True else heads
    if not sizes["head_dim"] and heads and hidden:
        found["head_dim"] = hidden // heads
    window = sizes["window"] or whole(text.get("attention_chunk_size"))
    found["window"] = window if window and text.get("use_sliding_window") is not False else None
    if sizes["experts"]:
        found["expert_size"] = sizes["expert_size"] or sizes["intermediate_size"] or 0
        shared = whole(text.get("shared_expert_intermediate_size")) or 0
        found["shared_experts"] = sizes["shared_experts"] or int(shared > 0)
    for way in (_mamba, _kimi, _lightning, _folded):
        found |= way(text, sizes)
    return found


def _mamba(text: Fields, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Mamba 1 has no heads: each of its inner channels has a state of its own."""
    states = sizes["linear_key_head_dim"]
    if sizes["linear_value_heads"] or not states or "linear_key_head_dim" in text:
        return {}
    expand = whole(text.get("mamba_expand", text.get("expand", 2))) or 2
    inner = _first(text, ("intermediate_size",)) if "time_step_rank" in text else None
    width = inner or expand * (sizes["hidden_size"] or 0)
    return {"linear_value_heads": width, "linear_value_head_dim": 1, "linear_key_heads": 0}


def _kimi(text: Fields, _: Mapping[str, Any]) -> dict[str, int]:
    """Kimi Linear keeps these in an object of their own."""
    linear = text.get("linear_attn_config")
    if not isinstance(linear, Mapping):
        return {}
    heads, dim = whole(linear.get("num_heads")) or 0, whole(linear.get("head_dim")) or 0
    return {
        "linear_key_heads": heads,
        "linear_value_heads": heads,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": dim,
        "linear_conv_kernel": whole(linear.get("short_conv_kernel_size")) or 0,
    }


def _lightning(text: Fields, sizes: Mapping[str, Any]) -> dict[str, int]:
    """MiniMax-01's linear attention has the heads of the other one."""
    if "attn_type_list" not in text and text.get("model_type") not in (
        "minimax",
        "minimax_text_01",
    ):
        return {}
    heads, dim = sizes["heads"] or 0, sizes["head_dim"] or 0
    return {
        "linear_key_heads": heads,
        "linear_value_heads": heads,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": dim,
    }


def _folded(text: Fields, sizes: Mapping[str, Any]) -> dict[str, int]:
    """DeepSeek-V4: key and value are one vector of the head's size, its rope part in it."""
    if numbers(text.get("compress_ratios")) is None:
        return {}
    rope = sizes["qk_rope_head_dim"]
    return {"kv_lora_rank": max(0, (sizes["head_dim"] or 0) - rope), "qk_rope_head_dim": rope}


def _own(text: Fields, number: int, kind: str) -> tuple[int | None, int | None, int]:
    """Return a layer's KV heads and head size where they are not the model's, and its folding."""

    def listed(name: str) -> int | None:
        by_layer = numbers(text.get(name))
        return by_layer[number] if by_layer and number < len(by_layer) else None

    kv_heads, folded = listed("num_key_value_heads"), listed("compress_ratios")
    compress = 1 if folded is None else folded
    if kind == "full" and (dim := whole(text.get("global_head_dim"))):  # Gemma 4
        return whole(text.get("num_global_key_value_heads")) or kv_heads, dim, compress
    return kv_heads, None, compress


def _word(value: Any) -> str:
    return value[:128] if isinstance(value, str) else ""
