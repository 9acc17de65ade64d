"""Modules of sound checkpoints whose configs say less than they could: nothing is told of them."""

from collections import Counter
from pathlib import Path

import field_checkpoints as field
import pytest
from checkpoints import write

from volta_runtime.checkpoint import inspect

H, F, E = 128, 256, 4


def llama(store, layers=4):
    """A Llama whose projections store() writes; the rest is dense."""
    found = field.dense("model.embed_tokens", 512, H) | field.dense("lm_head", 512, H)
    found["model.norm.weight"] = ("BF16", [H])
    for number in range(layers):
        base = f"model.layers.{number}"
        for name, n in zip("qkvo", (H, 64, 64, H), strict=True):
            found |= store(f"{base}.self_attn.{name}_proj", n, H)
        for name, n, k in (("gate", F, H), ("up", F, H), ("down", H, F)):
            found |= store(f"{base}.mlp.{name}_proj", n, k)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{base}.{name}.weight"] = ("BF16", [H])
    return found


def awq(name, n, k):
    return {
        f"{name}.qweight": ("I32", [k, n // 8]),
        f"{name}.qzeros": ("I32", [k // 64, n // 8]),
        f"{name}.scales": ("F16", [k // 64, n]),
    }


def gptq(name, n, k):
    return {
        f"{name}.qweight": ("I32", [k // 8, n]),
        f"{name}.qzeros": ("I32", [k // 64, n // 8]),
        f"{name}.scales": ("F16", [k // 64, n]),
        f"{name}.g_idx": ("I32", [k]),
    }


def g32(name, n, k):
    return {f"{name}.weight": ("U8", [n, k // 2]), f"{name}.weight_scale": ("F32", [n, k // 32])}


def block(name, n, k):
    scales = ("BF16", [-(-n // 128), -(-k // 32)])
    return {f"{name}.weight": ("U8", [n, k // 2]), f"{name}.weight_scale": scales}


def fp8_blocks(name, n, k):
    """As ModelOpt's FP8_PB_WO has it: a weight within one block has a single number."""
    blocks = [-(-n // 128), 1, -(-k // 128), 1]
    scale = [] if max(blocks) == 1 else blocks
    return {f"{name}.weight": ("F8_E4M3", [n, k]), f"{name}.weight_scale": ("F32", scale)}


def deepseek():
    """DeepSeek-V3: FP8 in blocks, whose config lists none of what is dense."""
    found = field.dense("model.embed_tokens", 512, H) | field.dense("lm_head", 512, H)
    for number in range(5):  # one dense layer, three with experts, one of multi-token prediction
        base = f"model.layers.{number}"
        for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
            found |= field.fp8_block(f"{base}.self_attn.{name}", H, H)
        experts = [f"{base}.mlp"]
        if number:
            experts = [f"{base}.mlp.experts.{n}" for n in range(E)] + [f"{base}.mlp.shared_experts"]
            found |= field.dense(f"{base}.mlp.gate", E, H)
            found[f"{base}.mlp.gate.e_score_correction_bias"] = ("F32", [E])
        for expert in experts:
            for name in ("gate_proj", "up_proj", "down_proj"):
                found |= field.fp8_block(f"{expert}.{name}", H, H)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{base}.{name}.weight"] = ("BF16", [H])
    found |= field.dense("model.layers.4.eh_proj", H, 2 * H)
    found |= field.dense("model.layers.4.shared_head.head", 512, H)
    for name in ("model.norm", "model.layers.4.enorm", "model.layers.4.hnorm"):
        found[f"{name}.weight"] = ("BF16", [H])
    return found


def gpt_oss():
    found = field.dense("model.embed_tokens", 512, H) | field.dense("lm_head", 512, H)
    found["model.norm.weight"] = ("BF16", [H])
    for number in range(2):
        base = f"model.layers.{number}"
        for name in "qkvo":
            found |= field.dense(f"{base}.self_attn.{name}_proj", H, H)
            found[f"{base}.self_attn.{name}_proj.bias"] = ("BF16", [H])
        found[f"{base}.self_attn.sinks"] = ("BF16", [4])
        found |= field.dense(f"{base}.mlp.router", E, H)
        found[f"{base}.mlp.router.bias"] = ("BF16", [E])
        for name, n in (("gate_up_proj", 2 * F), ("down_proj", H)):
            stack = f"{base}.mlp.experts.{name}"
            found[f"{stack}_blocks"] = ("U8", [E, n, 4, 16])
            found[f"{stack}_scales"] = ("U8", [E, n, 4])
            found[f"{stack}_bias"] = ("BF16", [E, n])
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{base}.{name}.weight"] = ("BF16", [H])
    return found


def config(layers, quantization, **more):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": H,
        "vocab_size": 512,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        "quantization_config": quantization,
        **more,
    }


EXPERTS = {"num_experts_per_tok": 2}
SOUND = {
    "awq": (
        llama(awq),
        config(4, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
        {"awq": 28},
    ),
    "gptq": (
        llama(gptq),
        config(4, {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}),
        {"gptq": 28},
    ),
    "fp8 of one scale": (
        llama(field.modelopt_fp8),
        config(4, {"quant_method": "fp8", "activation_scheme": "static"}),
        {"fp8-tensor": 28},
    ),
    "fp8 in blocks": (
        deepseek(),
        config(
            4,
            {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
            model_type="deepseek_v3",
            num_nextn_predict_layers=1,
            n_routed_experts=E,
            first_k_dense_replace=1,
            **EXPERTS,
        ),
        {"fp8-block": 5 * 5 + 3 + 4 * 3 * (E + 1)},
    ),
    "mxfp4": (
        gpt_oss(),
        config(
            2,
            {
                "quant_method": "mxfp4",
                "modules_to_not_convert": [
                    "model.layers.*.self_attn",
                    "model.layers.*.mlp.router",
                    "model.embed_tokens",
                    "lm_head",
                ],
            },
            model_type="gpt_oss",
            num_local_experts=E,
            head_dim=32,
            **EXPERTS,
        ),
        {"mxfp4-blocks": 4},
    ),
    "nvfp4 in groups of 16": (
        llama(field.w4a16_nvfp4),
        config(4, {"quant_method": "nvfp4", "group_size": 16}),
        {"nvfp4-g16": 28},
    ),
    "nvfp4 in groups of 32": (
        llama(g32),
        config(4, {"quant_method": "nvfp4", "group_size": 32, "scale_dtype": "fp32"}),
        {"nvfp4-g32": 28},
    ),
    "fp8 in blocks of ModelOpt": (
        llama(fp8_blocks),
        config(4, {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO", "ignore": ["lm_head"]}),
        {"modelopt-fp8": 28},
    ),
    "nvfp4 in blocks": (
        llama(block),
        config(4, {"quant_method": "nvfp4", "weight_block_size": [128, 32], "scale_dtype": "bf16"}),
        {"nvfp4-block": 28},
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_one(tmp_path: Path, name):
    tensors, content, expected = SOUND[name]
    checkpoint = inspect(write(tmp_path / "m", tensors, content))
    others = ("tokenizer-vocab", "chat-template")
    faults = [fault for fault in checkpoint.faults if fault.check not in others]
    assert [str(fault) for fault in faults if fault.level == "fail"] == []
    assert {fault.check for fault in faults} <= {"scale-direction"}
    found = Counter(module.format.name for module in checkpoint.modules.values())
    assert {row: count for row, count in found.items() if row != "dense"} == expected
    assert sum(module.scheme is not None for module in checkpoint.modules.values()) == sum(
        expected.values()
    )


def test_one_layer_that_a_blanket_promise_misses(tmp_path: Path):
    """What no layer has quantised is left dense on purpose; what all others have is not."""
    tensors, content, _ = SOUND["awq"]
    name = "model.layers.2.mlp.up_proj"
    tensors = {key: spec for key, spec in tensors.items() if not key.startswith(name)}
    checkpoint = inspect(write(tmp_path / "m", tensors | field.dense(name, F, H), content))
    conflicts = [fault for fault in checkpoint.faults if fault.check == "quant-conflict"]
    assert [(f.tensor, f.expected, f.found) for f in conflicts] == [(name, "awq", "BF16")]


def test_an_index_alone_has_no_modules(tmp_path: Path):
    path = write(tmp_path / "m", {}, config(4, {"quant_method": "fp8"}))
    (path / "model.safetensors").unlink()
    assert inspect(path).modules == {}
