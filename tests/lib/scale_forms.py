"""One layer in each form of scales: its tensors with their values, and the config of its method."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoints import Spec, write

N, K = 64, 128
PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
Q = "model.layers.0.self_attn.q_proj"
K_PROJ = "model.layers.0.self_attn.k_proj"


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def bf16(value: float) -> bytes:
    return f32(value)[2:]


def f16(value: float) -> bytes:
    return struct.pack("<e", value)


def _ct(group: Mapping[str, Any], name: str) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": group, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


# By form: the tensors of a module, and quantization_config.
FORMS: dict[str, tuple[dict[str, Spec], dict[str, Any]]] = {
    "nvfp4-pack-quantized": (
        {
            "weight_packed": ("U8", [N, K // 2]),
            "weight_scale": ("F8_E4M3", [N, K // 16], b"\x70" * (N * K // 16)),
            "weight_global_scale": ("F32", [1], f32(2688.0)),
        },
        _ct(
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            "nvfp4-pack-quantized",
        ),
    ),
    "modelopt-nvfp4": (
        {
            "weight": ("U8", [N, K // 2]),
            "weight_scale": ("F8_E4M3", [N, K // 16], b"\x70" * (N * K // 16)),
            "weight_scale_2": ("F32", [], f32(1 / 2688)),
            "input_scale": ("F32", [], f32(0.01)),
        },
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": []},
    ),
    "nvfp4-g32": (
        {
            "weight": ("U8", [N, K // 2]),
            "weight_scale": ("F32", [N, K // 32], f32(0.01) * (N * K // 32)),
        },
        {"quant_method": "nvfp4", "group_size": 32, "scale_dtype": "fp32"},
    ),
    "mxfp4-pack-quantized": (
        {
            "weight_packed": ("U8", [N, K // 2]),
            "weight_scale": ("U8", [N, K // 32], b"\x78" * (N * K // 32)),
        },
        _ct(
            {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
            "mxfp4-pack-quantized",
        ),
    ),
    "fp8-tensor": (
        {"weight": ("F8_E4M3", [N, K]), "weight_scale": ("F32", [], f32(0.002))},
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
    ),
    "fp8-channel": (
        {"weight": ("F8_E4M3", [N, K]), "weight_scale": ("BF16", [N, 1], bf16(0.002) * N)},
        _ct({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized"),
    ),
    "fp8-block": (
        {"weight": ("F8_E4M3", [N, K]), "weight_scale_inv": ("F32", [1, 1], f32(0.002))},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "awq": (
        {
            "qweight": ("I32", [K, N // 8]),
            "scales": ("F16", [K // 64, N], f16(0.01) * (K // 64 * N)),
            "qzeros": ("I32", [K // 64, N // 8]),
        },
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
    ),
    "gptq": (
        {
            "qweight": ("I32", [K // 8, N]),
            "scales": ("F16", [K // 64, N], f16(0.01) * (K // 64 * N)),
            "qzeros": ("I32", [K // 64, N // 8]),
            "g_idx": ("I32", [K]),
        },
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False},
    ),
}
SCALE = {form: next(n for n in FORMS[form][0] if n.startswith(("weight_scale", "scales")))
         for form in FORMS}  # fmt: skip


def make(directory: Path, form: str, changes: Mapping[str, Spec | None] = {}, **quant: Any) -> Path:
    """Write a layer of this form; changed tensors by full name, None for one that is left out."""
    parts, quantization = FORMS[form]
    tensors: dict[str, Spec] = {
        f"model.layers.0.{module}.{name}": spec for module in PARTS for name, spec in parts.items()
    }
    tensors |= {"model.embed_tokens.weight": ("F16", [256, K])}
    tensors = {name: spec for name, spec in (tensors | changes).items() if spec}
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": K,
        "num_hidden_layers": 1,
        "quantization_config": quantization | quant,
    }
    return write(directory / "m", tensors, config)
