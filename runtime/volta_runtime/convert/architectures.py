"""GGUF architectures: one row each, from GGUF names and metadata to the Hugging Face form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_runtime.convert.errors import ConvertError
from volta_runtime.convert.source import GGUFSource


@dataclass(frozen=True)
class Rule:
    """Where one GGUF weight goes; `{}` in both names stands for the layer.

    linear: a linear layer, to be quantised; others become FP16.
    rope_heads: metadata key (after the architecture) of the number of heads whose rows llama.cpp
        interleaved for its rope; None when the rows are in order.
    optional: absent when the head is tied to the embedding.
    """

    gguf: str
    module: str
    linear: bool = False
    rope_heads: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Architecture:
    """config returns config.json without what the conversion itself adds."""

    name: str
    rules: tuple[Rule, ...]
    config: Callable[[GGUFSource], dict[str, Any]]


def _llama_config(source: GGUFSource) -> dict[str, Any]:
    def require(key: str) -> Any:
        return source.require(f"llama.{key}")

    hidden, heads = require("embedding_length"), require("attention.head_count")
    head_dim = source.get("llama.attention.key_length", hidden // heads)
    rope_dim = source.get("llama.rope.dimension_count", head_dim)
    scaling = source.get("llama.rope.scaling.type", "none")
    if rope_dim != head_dim or scaling != "none":
        raise ConvertError(
            f"{source.path}: rope over {rope_dim} of {head_dim} dimensions with scaling"
            f" {scaling!r} is not supported by this version; supported: the whole head, unscaled"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": require("feed_forward_length"),
        "max_position_embeddings": require("context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": require("block_count"),
        "num_key_value_heads": source.get("llama.attention.head_count_kv", heads),
        "rms_norm_eps": _decimal(require("attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": _decimal(source.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in source.shapes,
        "vocab_size": source.shapes["token_embd.weight"][0],
    }


def _decimal(value: float) -> float:
    """The shortest decimal with the same FP32 value: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


LLAMA = Architecture(
    "llama",
    (
        Rule("token_embd", "model.embed_tokens"),
        Rule("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
        Rule("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", True, "attention.head_count"),
        Rule("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", True, "attention.head_count_kv"),
        Rule("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj", True),
        Rule("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj", True),
        Rule("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
        Rule("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj", True),
        Rule("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj", True),
        Rule("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj", True),
        Rule("output_norm", "model.norm"),
        Rule("output", "lm_head", optional=True),
    ),
    _llama_config,
)

ARCHITECTURES = {row.name: row for row in (LLAMA,)}


def architecture_of(source: GGUFSource) -> Architecture:
    """The row for the file's architecture; raises ConvertError naming one that has none."""
    name = source.require("general.architecture")
    if name not in ARCHITECTURES:
        raise ConvertError(
            f"{source.path}: architecture {name!r} is not supported by this version;"
            f" supported: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]
