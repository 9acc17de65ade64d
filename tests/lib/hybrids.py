"""Qwen3.5's hybrids in small: a config, and all tensors by name, each stored as one is told."""

from collections.abc import Callable
from typing import Any

from checkpoints import Spec

Tensors = dict[str, Spec]
Store = Callable[[str, int, int], Tensors]

HIDDEN, FFN, VOCAB, HEADS, HEAD_DIM = 128, 256, 512, 4, 32
TEXT = "model.language_model."
MLP = ("gate_proj", "up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
GDN = ("in_proj_qkv", "in_proj_z", "out_proj")


def dense(name: str, n: int, k: int) -> Tensors:
    return {f"{name}.weight": ("BF16", [n, k])}


def ct_nvfp4(name: str, n: int, k: int) -> Tensors:
    return {
        f"{name}.weight_packed": ("U8", [n, k // 2]),
        f"{name}.weight_scale": ("F8_E4M3", [n, k // 16]),
        f"{name}.weight_global_scale": ("F32", [1]),
        f"{name}.input_global_scale": ("F32", [1]),
    }


def ct_fp8_channel(name: str, n: int, k: int) -> Tensors:
    return {f"{name}.weight": ("F8_E4M3", [n, k]), f"{name}.weight_scale": ("BF16", [n, 1])}


def w4a16_nvfp4(name: str, n: int, k: int) -> Tensors:
    return {
        f"{name}.weight": ("U8", [n, k // 2]),
        f"{name}.weight_scale": ("F8_E4M3", [n, k // 16]),
        f"{name}.weight_scale_2": ("F32", []),
    }


def modelopt_nvfp4(name: str, n: int, k: int) -> Tensors:
    return w4a16_nvfp4(name, n, k) | {f"{name}.input_scale": ("F32", [])}


def modelopt_fp8(name: str, n: int, k: int) -> Tensors:
    return {
        f"{name}.weight": ("F8_E4M3", [n, k]),
        f"{name}.weight_scale": ("F32", []),
        f"{name}.input_scale": ("F32", []),
    }


def fp8_block(name: str, n: int, k: int) -> Tensors:
    return {
        f"{name}.weight": ("F8_E4M3", [n, k]),
        f"{name}.weight_scale_inv": ("BF16", [-(-n // 128), -(-k // 128)]),
    }


def config(layers: int, **more: Any) -> dict[str, Any]:
    """config.json of a Qwen3.5 hybrid; `text` are further keys of text_config."""
    text = {
        "model_type": "qwen3_5_text",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "vocab_size": VOCAB,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "layer_types": kinds(layers),
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
        **more.pop("text", {}),
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"depth": 2, "model_type": "qwen3_5"},
        **more,
    }


def kinds(layers: int) -> list[str]:
    """Full attention in every fourth layer."""
    return ["full_attention" if n % 4 == 3 else "linear_attention" for n in range(layers)]


def hybrid(store: Callable[[str], Store], layers: int, experts: int = 0) -> Tensors:
    """All tensors of a Qwen3.5 model with vision tower and MTP; store() says how a module lies."""
    found = _linear(store, (f"{TEXT}embed_tokens", VOCAB, HIDDEN))
    for number, kind in enumerate(kinds(layers)):
        base = f"{TEXT}layers.{number}"
        if kind == "full_attention":
            found |= _attention(store, f"{base}.self_attn")
        else:
            found |= _delta_net(store, f"{base}.linear_attn")
        found |= _feed_forward(store, f"{base}.mlp", experts)
        found |= _vectors(f"{base}.input_layernorm", f"{base}.post_attention_layernorm")
    found |= _vectors(f"{TEXT}norm")
    found |= _linear(store, ("lm_head", VOCAB, HIDDEN))
    return found | _vision(store) | _mtp(store, experts)


def _linear(store: Callable[[str], Store], *layers: tuple[str, int, int]) -> Tensors:
    """The tensors of linear layers, each by name, N and K."""
    found: Tensors = {}
    for name, n, k in layers:
        found |= store(name)(name, n, k)
    return found


def _vectors(*names: str) -> Tensors:
    return {f"{name}.weight": ("BF16", [HIDDEN]) for name in names}


def _attention(store: Callable[[str], Store], base: str) -> Tensors:
    found = _linear(
        store,
        (f"{base}.q_proj", 2 * HEADS * HEAD_DIM, HIDDEN),
        (f"{base}.k_proj", 2 * HEAD_DIM, HIDDEN),
        (f"{base}.v_proj", 2 * HEAD_DIM, HIDDEN),
        (f"{base}.o_proj", HIDDEN, HEADS * HEAD_DIM),
    )
    return found | {f"{base}.{n}_norm.weight": ("BF16", [HEAD_DIM]) for n in "qk"}


def _delta_net(store: Callable[[str], Store], base: str) -> Tensors:
    found = _linear(
        store,
        (f"{base}.in_proj_qkv", 256, HIDDEN),
        (f"{base}.in_proj_z", 128, HIDDEN),
        (f"{base}.in_proj_b", 8, HIDDEN),
        (f"{base}.in_proj_a", 8, HIDDEN),
        (f"{base}.out_proj", HIDDEN, 128),
    )
    return found | {
        f"{base}.conv1d.weight": ("BF16", [256, 1, 4]),
        f"{base}.A_log": ("F32", [8]),
        f"{base}.dt_bias": ("BF16", [8]),
        f"{base}.norm.weight": ("BF16", [16]),
    }


def _feed_forward(store: Callable[[str], Store], base: str, experts: int) -> Tensors:
    if not experts:
        return _mlp(store, base)
    found = _linear(
        store, (f"{base}.gate", experts, HIDDEN), (f"{base}.shared_expert_gate", 1, HIDDEN)
    )
    found |= _mlp(store, f"{base}.shared_expert")
    for number in range(experts):
        found |= _mlp(store, f"{base}.experts.{number}")
    return found


def _mlp(store: Callable[[str], Store], base: str) -> Tensors:
    sizes = zip(MLP, (FFN, FFN, HIDDEN), (HIDDEN, HIDDEN, FFN), strict=True)
    return _linear(store, *((f"{base}.{name}", n, k) for name, n, k in sizes))


def _vision(store: Callable[[str], Store]) -> Tensors:
    found: Tensors = {}
    for number in range(2):
        base = f"model.visual.blocks.{number}"
        found |= _linear(
            store,
            (f"{base}.attn.qkv", 3 * HIDDEN, HIDDEN),
            (f"{base}.attn.proj", HIDDEN, HIDDEN),
            (f"{base}.mlp.linear_fc1", FFN, HIDDEN),
            (f"{base}.mlp.linear_fc2", HIDDEN, FFN),
        )
        found |= _vectors(f"{base}.norm1", f"{base}.norm2")
    found |= _linear(store, ("model.visual.merger.linear_fc1", FFN, HIDDEN))
    found |= _linear(store, ("model.visual.pos_embed", 16, HIDDEN))
    return found | {"model.visual.patch_embed.proj.weight": ("BF16", [HIDDEN, 3, 2, 16, 16])}


def _mtp(store: Callable[[str], Store], experts: int) -> Tensors:
    found = _linear(store, ("mtp.fc", HIDDEN, 2 * HIDDEN))
    found |= _attention(store, "mtp.layers.0.self_attn")
    found |= _feed_forward(store, "mtp.layers.0.mlp", experts)
    return found | _vectors(
        "mtp.norm",
        "mtp.pre_fc_norm_embedding",
        "mtp.pre_fc_norm_hidden",
        "mtp.layers.0.input_layernorm",
        "mtp.layers.0.post_attention_layernorm",
    )
