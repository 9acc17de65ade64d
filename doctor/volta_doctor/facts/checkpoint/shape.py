"""A model's shape, as a snapshot keeps it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from volta_runtime.checkpoint.architecture import Architecture

_KEEPS_ALL = ("full", "hybrid", "mla")


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of CheckpointFacts that a config.json gives."""
    from volta_runtime.checkpoint.architecture import from_config
    from volta_runtime.checkpoint.architecture.layers import count_of

    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, Mapping) else config
    quantization = text.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    words = {
        "model_type": text.get("model_type"),
        "torch_dtype": text.get("torch_dtype") or text.get("dtype"),
        "quant_method": method,
    }
    found = _fields(from_config(config), count_of(text))
    return found | {name: word for name, word in words.items() if isinstance(word, str)}


def of_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of CheckpointFacts that the metadata of a GGUF file gives."""
    from volta_runtime.checkpoint.architecture import from_gguf

    a = from_gguf(metadata)
    return _fields(a, len(a.layers)) | ({"model_type": a.model_type} if a.model_type else {})


def _fields(a: "Architecture", layers: int | None) -> dict[str, Any]:
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "hidden_size": a.hidden_size,
        "max_position_embeddings": a.max_position,
        "sliding_window": a.window,
        "kv_lora_rank": a.kv_lora_rank,
        "qk_rope_head_dim": a.qk_rope_head_dim,
    }
    found: dict[str, Any] = {name: size for name, size in sizes.items() if size}
    if a.layers:
        kinds = [layer.kind for layer in a.layers]
        found["full_layers"] = sum(kind in _KEEPS_ALL for kind in kinds)
        found["sliding_layers"] = kinds.count("sliding")
    return found
