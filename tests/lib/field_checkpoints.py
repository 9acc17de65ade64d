"""Checkpoints of the layouts that V100 owners serve, in small: all names, sparse and tiny weights.

The layouts are those of the published checkpoints that each function names, as their configs, their
indexes and the loaders that read them describe them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoints import write
from hybrids import (
    ATTENTION,
    FFN,
    GDN,
    HIDDEN,
    MLP,
    TEXT,
    Store,
    Tensors,
    config,
    ct_fp8_channel,
    ct_nvfp4,
    dense,
    fp8_block,
    hybrid,
    modelopt_fp8,
    modelopt_nvfp4,
    w4a16_nvfp4,
)

_FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
NVFP4_GROUP = {
    "format": "nvfp4-pack-quantized",
    "input_activations": {**_FLOAT4, "dynamic": "local", "group_size": 16},
    "weights": {
        **_FLOAT4,
        "strategy": "tensor_group",
        "group_size": 16,
        "scale_dtype": "torch.float8_e4m3fn",
    },
}
FP8_GROUP = {
    "format": "float-quantized",
    "input_activations": {**_FLOAT8, "dynamic": True, "strategy": "token"},
    "weights": {**_FLOAT8, "strategy": "channel"},
}


def quasar(path: Path, layers: int = 64) -> Path:
    """QUASAR-QAT/Qwen3.8-27B-QUASAR-NVFP4: NVFP4 on all linear layers of the text model."""

    def store(name: str) -> Store:
        text = name.startswith(f"{TEXT}layers")
        return ct_nvfp4 if text else dense

    quantization = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**NVFP4_GROUP, "targets": ["Linear"]}},
        "ignore": ["lm_head", "re:.*visual.*", "re:^mtp.*"],
    }
    return write(path, hybrid(store, layers), config(layers, quantization_config=quantization))


def unsloth(path: Path, layers: int = 64) -> Path:
    """unsloth/Qwen3.8-27B-NVFP4: mixed-precision, FP8 late MLPs claimed by two groups."""
    late = range(layers - 8, layers)

    def store(name: str) -> Store:
        if name.startswith(("model.visual", "mtp", f"{TEXT}embed")):
            return dense
        if name.rpartition(".")[2] in ("in_proj_a", "in_proj_b"):
            return dense
        if ".mlp." in name and int(name.split(".")[3]) not in late:
            return ct_nvfp4
        return ct_fp8_channel

    numbers = "|".join(map(str, late))
    fp8 = [
        r"re:.*self_attn\.(q|k|v|o)_proj$",
        r"re:.*linear_attn\.(in_proj_qkv|in_proj_z|out_proj)$",
        "lm_head",
        rf"re:.*layers\.({numbers})\.mlp\.(gate|up|down)_proj$",
    ]
    ignore = [
        f"{TEXT}layers.{n}.linear_attn{part}"
        for n in range(layers)
        if n % 4 != 3
        for part in ("", ".norm", ".in_proj_a", ".in_proj_b", ".conv1d")
    ]
    ignore += [
        f"model.visual.blocks.{n}.{part}"
        for n in range(2)
        for part in ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")
    ]
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {**FP8_GROUP, "targets": fp8},
            "group_1": {**NVFP4_GROUP, "targets": [r"re:.*mlp\.(gate|up|down)_proj$"]},
        },
        "ignore": [*ignore, "model.visual.merger.linear_fc1", "re:^mtp.*"],
        "kv_cache_scheme": {**_FLOAT8, "strategy": "tensor"},
    }
    tensors = hybrid(store, layers)
    for number in range(3, layers, 4):
        for scale in ("k_scale", "v_scale"):
            tensors[f"{TEXT}layers.{number}.self_attn.{scale}"] = ("F32", [1])
    return write(path, tensors, config(layers, quantization_config=quantization))


def _modelopt(
    path: Path,
    tensors: Tensors,
    layers: int,
    quantised: dict[str, dict[str, Any]],
    exclude: list[str],
    kv: str | None,
    in_config: bool = True,
    **more: Any,
) -> Path:
    """A ModelOpt checkpoint; the KV setting is in hf_quant_config.json alone."""
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": quantised}
    own = {"quant_method": "modelopt", **mixed, "ignore": exclude}
    hf = {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {**mixed, "kv_cache_quant_algo": kv, "exclude_modules": exclude},
    }
    content = config(layers, **({"quantization_config": own} if in_config else {}), **more)
    return write(path, tensors, content, files={"hf_quant_config.json": hf})


def _rule(stores: dict[str, Store], name: str) -> Store:
    """The store of the last part of a name, dense outside the text model."""
    inside = name.startswith(f"{TEXT}layers") or name == "lm_head"
    return stores.get(name.rpartition(".")[2], dense) if inside else dense


def _quantised(tensors: Tensors, algos: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """quantized_layers: by the last part of each module's name, of the modules with scales."""
    modules = [name.removesuffix(".weight_scale") for name in tensors if "weight_scale" in name]
    return {
        name: algos[name.rpartition(".")[2]] for name in modules if name.rpartition(".")[2] in algos
    }


FP8, NVFP4 = {"quant_algo": "FP8"}, {"quant_algo": "NVFP4", "group_size": 16}
W4A16 = {"quant_algo": "W4A16_NVFP4", "group_size": 16}


def radixark(path: Path, layers: int = 64) -> Path:
    """RadixArk/Qwen3.8-27B-NVFP4 by ModelOpt 0.47: FP8 attention and GDN, NVFP4 MLPs and head."""
    stores: dict[str, Store] = dict.fromkeys((*MLP, "lm_head"), modelopt_nvfp4)
    stores |= dict.fromkeys((*ATTENTION, *GDN), modelopt_fp8)
    tensors = hybrid(lambda name: _rule(stores, name), layers)
    algos = dict.fromkeys((*MLP, "lm_head"), NVFP4) | dict.fromkeys((*ATTENTION, *GDN), FP8)
    quantised = _quantised(tensors, algos)
    exclude = ["*linear_attn.conv1d*", "*linear_attn.in_proj_a*", "*linear_attn.in_proj_b*"]
    exclude += ["mtp*", "model.visual*", f"{TEXT}embed_tokens"]
    return _modelopt(path, tensors, layers, quantised, exclude, "FP8")


def nvidia_27b(path: Path, layers: int = 64) -> Path:
    """nvidia/Qwen3.6-27B-NVFP4: W4A16 MLPs and head, FP8 attention."""
    stores: dict[str, Store] = dict.fromkeys((*MLP, "lm_head"), w4a16_nvfp4)
    stores |= dict.fromkeys((*ATTENTION, *GDN), modelopt_fp8)
    tensors = hybrid(lambda name: _rule(stores, name), layers)
    algos = dict.fromkeys((*MLP, "lm_head"), W4A16) | dict.fromkeys((*ATTENTION, *GDN), FP8)
    quantised = _quantised(tensors, algos)
    return _modelopt(path, tensors, layers, quantised, ["mtp*", "model.visual*"], "FP8")


def nvidia_35b(path: Path, layers: int = 40, experts: int = 8) -> Path:
    """nvidia/Qwen3.6-35B-A3B-NVFP4: all experts of a layer under one entry of quantized_layers."""
    stores: dict[str, Store] = dict.fromkeys((*MLP, "lm_head"), w4a16_nvfp4)
    stores |= dict.fromkeys((*ATTENTION, *GDN), modelopt_fp8)
    tensors = hybrid(lambda name: _rule(stores, name), layers, experts)
    algos = dict.fromkeys(("lm_head",), W4A16) | dict.fromkeys((*ATTENTION, *GDN), FP8)
    quantised = _quantised(tensors, algos)
    for number in range(layers):
        quantised[f"{TEXT}layers.{number}.mlp.experts"] = W4A16
        for name in MLP:
            quantised[f"{TEXT}layers.{number}.mlp.shared_expert.{name}"] = W4A16
    exclude = ["mtp*", "mtp.layers.0*", "model.visual*"]
    text = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": FFN}
    return _modelopt(path, tensors, layers, quantised, exclude, "FP8", text=text)


def flash_next(path: Path, layers: int = 48, experts: int = 8, shards: int = 16) -> Path:
    """nvidia/Qwen3.8-Flash-Next-NVFP4: NVFP4 experts, an FP8 n-gram table, FP8 MTP experts."""

    def store(name: str) -> Store:
        if ".experts." not in name:
            return dense
        return fp8_block if name.startswith("mtp") else modelopt_nvfp4

    tensors = hybrid(store, layers, experts)
    ignore = ["lm_head", f"{TEXT}embed_tokens", f"{TEXT}hyper_connection_mixer*", "model.visual*"]
    for number in range(layers):
        base = f"{TEXT}layers.{number}"
        for side in ("attn", "mlp"):
            hyper = f"{base}.{side}_hyper_connection"
            tensors |= dense(f"{hyper}.input_mix_weight_down", 8, HIDDEN)
            tensors |= dense(f"{hyper}.input_mix_weight_up", HIDDEN, 16)
        kind = "self_attn" if number % 4 == 3 else "linear_attn"
        ignore += [f"{base}.{kind}*", f"{base}.*_hyper_connection*", f"{base}.mlp.gate*"]
        ignore += [f"{base}.mlp.shared_expert*", f"{base}.ple.key_proj", f"{base}.ple.value_proj"]
    table = f"{TEXT}layers.1.ple.ple_embedding.ngram_embedding"
    for number in range(shards):
        tensors[f"{table}.shard_{number}.weight"] = ("F8_E4M3", [64, 32])
    tensors[f"{table}.weight_scale"] = ("BF16", [1])
    tensors |= dense(f"{TEXT}layers.1.ple.key_proj", HIDDEN, 32)
    tensors |= dense(f"{TEXT}layers.1.ple.value_proj", HIDDEN, 32)
    tensors[f"{TEXT}layers.1.ple.ple_embedding.ngram_heads_offsets"] = ("I64", [16])
    quantised: dict[str, dict[str, Any]] = {
        f"{TEXT}layers.{number}.mlp.experts": NVFP4 for number in range(layers)
    }
    quantised[table] = FP8
    quantised["mtp.layers.0.mlp.experts"] = {"quant_algo": "FP8_PB_WO", "group_size": 128}
    text = {
        "model_type": "qwen4_exp_text",
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": FFN,
    }
    return _modelopt(path, tensors, layers, quantised, ignore, None, text=text)


def reexport(path: Path, layers: int = 8) -> Path:
    """A community re-export: no input_scale, the config in hf_quant_config.json alone."""
    stores: dict[str, Store] = dict.fromkeys(MLP, w4a16_nvfp4)
    tensors = hybrid(lambda name: _rule(stores, name), layers)
    algo = {"quant_algo": "NVFP4", "group_size": 16, "with_input_scale": False}
    exclude = ["lm_head", "*self_attn*", "*linear_attn*", "mtp*", "model.visual*"]
    hf = {"quantization": {**algo, "kv_cache_quant_algo": None, "exclude_modules": exclude}}
    return write(path, tensors, config(layers), files={"hf_quant_config.json": hf})


def mixfp4(path: Path, layers: int = 8) -> Path:
    """MixFP4 (proposed): NVFP4's tensors, and another meaning of the scales' sign bits."""
    path = quasar(path, layers)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace("nvfp4-pack-quantized", "mixfp4-pack-quantized"))
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], None], file: str = "config.json") -> None:
    """Change a JSON file of a checkpoint."""
    content = json.loads((path / file).read_text())
    change(content)
    (path / file).write_text(json.dumps(content))
