"""Checkpoints of the layouts that V100 owners serve, in small: all names, sparse and tiny weights.

The layouts are those of the published checkpoints that each function names, as their configs, their
indexes and the loaders that read them describe them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoints import Spec, write

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
    found: Tensors = {}

    def linear(name: str, n: int, k: int) -> None:
        found.update(store(name)(name, n, k))

    def vectors(*names: str) -> None:
        found.update({f"{name}.weight": ("BF16", [HIDDEN]) for name in names})

    def attention(base: str) -> None:
        linear(f"{base}.q_proj", 2 * HEADS * HEAD_DIM, HIDDEN)
        linear(f"{base}.k_proj", 2 * HEAD_DIM, HIDDEN)
        linear(f"{base}.v_proj", 2 * HEAD_DIM, HIDDEN)
        linear(f"{base}.o_proj", HIDDEN, HEADS * HEAD_DIM)
        found.update({f"{base}.{n}_norm.weight": ("BF16", [HEAD_DIM]) for n in "qk"})

    def delta_net(base: str) -> None:
        linear(f"{base}.in_proj_qkv", 256, HIDDEN)
        linear(f"{base}.in_proj_z", 128, HIDDEN)
        linear(f"{base}.in_proj_b", 8, HIDDEN)
        linear(f"{base}.in_proj_a", 8, HIDDEN)
        linear(f"{base}.out_proj", HIDDEN, 128)
        found[f"{base}.conv1d.weight"] = ("BF16", [256, 1, 4])
        found[f"{base}.A_log"] = ("F32", [8])
        found[f"{base}.dt_bias"] = ("BF16", [8])
        found[f"{base}.norm.weight"] = ("BF16", [16])

    def mlp(base: str) -> None:
        for name, n, k in zip(MLP, (FFN, FFN, HIDDEN), (HIDDEN, HIDDEN, FFN), strict=True):
            linear(f"{base}.{name}", n, k)

    def feed_forward(base: str) -> None:
        if not experts:
            mlp(base)
            return
        linear(f"{base}.gate", experts, HIDDEN)
        linear(f"{base}.shared_expert_gate", 1, HIDDEN)
        mlp(f"{base}.shared_expert")
        for number in range(experts):
            mlp(f"{base}.experts.{number}")

    linear(f"{TEXT}embed_tokens", VOCAB, HIDDEN)
    for number, kind in enumerate(kinds(layers)):
        base = f"{TEXT}layers.{number}"
        if kind == "full_attention":
            attention(f"{base}.self_attn")
        else:
            delta_net(f"{base}.linear_attn")
        feed_forward(f"{base}.mlp")
        vectors(f"{base}.input_layernorm", f"{base}.post_attention_layernorm")
    vectors(f"{TEXT}norm")
    linear("lm_head", VOCAB, HIDDEN)
    # Vision and MTP.
    for number in range(2):
        base = f"model.visual.blocks.{number}"
        linear(f"{base}.attn.qkv", 3 * HIDDEN, HIDDEN)
        linear(f"{base}.attn.proj", HIDDEN, HIDDEN)
        linear(f"{base}.mlp.linear_fc1", FFN, HIDDEN)
        linear(f"{base}.mlp.linear_fc2", HIDDEN, FFN)
        vectors(f"{base}.norm1", f"{base}.norm2")
    linear("model.visual.merger.linear_fc1", FFN, HIDDEN)
    linear("model.visual.pos_embed", 16, HIDDEN)
    found["model.visual.patch_embed.proj.weight"] = ("BF16", [HIDDEN, 3, 2, 16, 16])
    linear("mtp.fc", HIDDEN, 2 * HIDDEN)
    attention("mtp.layers.0.self_attn")
    feed_forward("mtp.layers.0.mlp")
    vectors(
        "mtp.norm",
        "mtp.pre_fc_norm_embedding",
        "mtp.pre_fc_norm_hidden",
        "mtp.layers.0.input_layernorm",
        "mtp.layers.0.post_attention_layernorm",
    )
    return found


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
