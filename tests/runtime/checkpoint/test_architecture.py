"""Architectures: published configs against published figures; hostile ones give nothing."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from models import shapes

from volta_runtime.checkpoint.architecture import from_config, from_gguf, read_architecture
from volta_runtime.checkpoint.contents import Contents

DATA = Path(__file__).parents[2] / "data" / "runtime" / "architectures"


def config(name):
    return json.loads((DATA / f"{name}.json").read_text())


def kinds(architecture):
    return Counter(layer.kind for layer in architecture.layers)


@pytest.mark.parametrize(
    ("name", "parameters", "more"),
    [
        # As the models' cards and safetensors' own counts have it.
        ("qwen2.5-7b", 7_615_616_512, {"bias": True}),
        ("llama-3-70b", 70_553_706_496, {}),
        ("mixtral-8x7b", 46_702_792_704, {}),
        ("qwen3-30b-a3b", 30_532_110_336, {}),  # without the norms of heads
        ("deepseek-v3", 671_026_404_352, {}),  # 671B without its MTP layer and routers' biases
    ],
)
def test_parameters_that_follow_are_those_that_are_published(name, parameters, more):
    model = shapes(from_config(config(name)), **more)
    assert sum(math.prod(shape) for shape in model.values()) == parameters


@pytest.mark.parametrize(
    ("name", "found", "window"),
    [
        ("qwen2.5-7b", {"full": 28}, None),
        ("llama-3-70b", {"full": 80}, None),
        ("gpt-oss-20b", {"sliding": 12, "full": 12}, 128),
        ("gemma-3-27b", {"sliding": 52, "full": 10}, 1024),
        ("deepseek-v3", {"mla": 61}, None),
        ("qwen3.8-27b", {"linear": 48, "full": 16}, None),
        ("qwen3.5-35b-a3b", {"linear": 30, "full": 10}, None),
        ("nemotron-h-8b", {"linear": 24, "none": 24, "full": 4}, None),
    ],
)
def test_what_layers_keep(name, found, window):
    architecture = from_config(config(name))
    assert kinds(architecture) == found
    assert architecture.window == window


def test_a_mixture_whose_first_layers_are_dense():
    a = from_config(config("deepseek-v3"))
    assert [layer.experts for layer in a.layers[:5]] == [0, 0, 0, 256, 256]
    assert (a.experts_per_token, a.shared_experts, a.expert_size, a.mtp_layers) == (8, 1, 2048, 1)
    assert (a.kv_lora_rank, a.qk_rope_head_dim, a.v_head_dim) == (512, 64, 128)


def test_class_defaults_that_a_config_leaves_out():
    a = from_config(config("gemma-3-4b"))
    assert (a.heads, a.kv_heads, a.head_dim, a.vocab_size) == (8, 4, 256, 262208)
    assert (a.tied, a.vision, kinds(a)) == (True, True, {"sliding": 29, "full": 5})


def test_a_wrapped_text_model():
    a = from_config(config("qwen3.5-35b-a3b"))
    assert (a.model_type, a.names) == (
        "qwen3_5_moe_text",
        ("Qwen3_5MoeForConditionalGeneration",),
    )
    assert (a.experts, a.experts_per_token, a.shared_experts, a.expert_size) == (256, 8, 1, 512)
    assert (a.linear_key_heads, a.linear_value_heads, a.linear_conv_kernel) == (16, 32, 4)
    assert (a.mtp_layers, a.vision, a.dtype) == (1, True, "BF16")


SMALL = {"num_hidden_layers": 8, "num_attention_heads": 8, "hidden_size": 64}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, "llllflll"),
        ({"attn_type_list": [0, 1, 0, 1, 0, 1, 0, 1]}, "lflflflf"),
        ({"linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1]}}, "lllflllf"),
        ({"sliding_window": 9, "sliding_window_pattern": "LLLG"}, "sssfsssf"),
        ({"sliding_window": 9, "model_type": "gemma2"}, "sfsfsfsf"),
        ({"sliding_window": 9, "model_type": "mistral"}, "ssssssss"),
        ({"sliding_window": 9, "model_type": "qwen3"}, "ffffffff"),
        ({"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 6}, "ffffffss"),
        ({"attention_chunk_size": 9}, "sssfsssf"),
        ({"layers_block_type": ["mamba", "attention", "moe", "hybrid"]}, "lfnh"),
        ({"model_type": "mamba2"}, "llllllll"),
        ({"num_kv_shared_layers": 3}, "fffffnnn"),
        ({"kv_lora_rank": 512, "full_attention_interval": 4}, "lllmlllm"),
        ({"compress_ratios": [0, 4] * 4, "sliding_window": 9, "head_dim": 512}, "mmmmmmmm"),
    ],
)
def test_ways_to_tell_what_layers_keep(fields, found):
    assert "".join(layer.kind[0] for layer in from_config(SMALL | fields).layers) == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, "01000101"),
        ({"interleave_moe_layer_step": 2}, "01010101"),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, "01010101"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "00101010"),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 0]}, "01111110"),
        ({"mlp_layer_types": ["dense", *["sparse"] * 7]}, "01111111"),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": -1}, "00111111"),
        ({}, "11111111"),
    ],
)
def test_ways_to_tell_which_layers_have_experts(fields, found):
    a = from_config(SMALL | {"num_local_experts": 4} | fields)
    assert "".join(str(int(layer.experts == 4)) for layer in a.layers) == found


def test_heads_and_layers_of_their_own_sizes():
    a = from_config(SMALL | {"num_key_value_heads": [4, 2, 4, 2, 4, 2, 4, 2]})
    assert [layer.kv_heads for layer in a.layers][:2] == [4, 2]
    a = from_config(SMALL | {"layer_types": ["full_attention"], "global_head_dim": 512})
    assert a.layers[0].head_dim == 512
    a = from_config({"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64} | MAMBA)
    assert (a.linear_value_heads, a.linear_value_head_dim, a.linear_key_head_dim) == (128, 1, 16)


MAMBA = {"state_size": 16, "expand": 2, "conv_kernel": 4}
HUGE = 10**30


@pytest.mark.parametrize("value", ["64", -1, HUGE, 1e30, True, None, [], {}, [HUGE], [[1]]])
def test_nothing_hostile_is_a_size(value):
    names = config("deepseek-v3").keys() | config("qwen3.8-27b")["text_config"].keys()
    a = from_config(dict.fromkeys(names, value))
    assert a.layers == ()
    assert (a.hidden_size, a.heads, a.vocab_size, a.experts) == (None, None, None, 0)


def test_a_billion_layers_are_none():
    assert from_config({"num_hidden_layers": 10**9}).layers == ()
    assert from_config({"layer_types": ["full_attention"] * 10**5}).layers == ()
    assert from_gguf({"general.architecture": "llama", "llama.block_count": 10**9}).layers == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": [{}, 7, None]},
        {"moe_layer_freq": ["x"], "num_experts": 4},
        {"sliding_window": 8, "sliding_window_pattern": ""},
        {"sliding_window": 8, "sliding_window_pattern": 0},
        {"attn_layer_period": 0, "full_attention_interval": 0},
        {"linear_attn_config": [], "text_config": 7, "architectures": {"a": 1}},
        {"num_attention_heads": 0, "hidden_size": 0},
        {"torch_dtype": ["float16"], "model_type": 5},
    ],
)
def test_strange_configs_are_read_without_a_crash(fields):
    from_config(SMALL | fields)


def gguf(kind, **pairs):
    named = {f"{kind}.{key.replace('__', '.')}": value for key, value in pairs.items()}
    return from_gguf({"general.architecture": kind} | named)


def test_gguf_of_a_dense_model():
    a = gguf(
        "qwen2",
        block_count=28,
        embedding_length=3584,
        attention__head_count=28,
        attention__head_count_kv=4,
        context_length=32768,
    )
    assert (kinds(a), a.kv_heads, a.head_dim, a.max_position) == ({"full": 28}, 4, 128, 32768)


def test_gguf_of_hybrids_and_mixtures():
    a = gguf(
        "qwen35moe",
        block_count=41,
        nextn_predict_layers=1,
        full_attention_interval=4,
        attention__head_count=16,
        attention__head_count_kv=2,
        expert_count=256,
        expert_used_count=8,
        ssm__state_size=128,
        ssm__group_count=16,
        ssm__time_step_rank=32,
        ssm__inner_size=4096,
        ssm__conv_kernel=4,
    )
    assert (kinds(a), a.mtp_layers) == ({"linear": 30, "full": 10}, 1)
    assert (a.linear_value_heads, a.linear_value_head_dim) == (32, 128)
    assert {layer.experts for layer in a.layers} == {256}
    a = gguf(
        "nemotron_h",
        block_count=4,
        attention__head_count=8,
        attention__head_count_kv=[0, 0, 2, 0],
        feed_forward_length=[0, 9, 0, 9],
        ssm__state_size=128,
        ssm__group_count=8,
        ssm__time_step_rank=4,
        ssm__inner_size=256,
    )
    assert [layer.kind for layer in a.layers] == ["linear", "none", "full", "none"]


def test_gguf_of_mla_and_windows():
    a = gguf(
        "deepseek2",
        block_count=3,
        leading_dense_block_count=1,
        expert_count=8,
        attention__head_count=16,
        attention__head_count_kv=1,
        attention__kv_lora_rank=512,
        attention__key_length=576,
        attention__key_length_mla=192,
        rope__dimension_count=64,
    )
    assert kinds(a) == {"mla": 3}
    assert (a.kv_lora_rank, a.qk_rope_head_dim, a.qk_nope_head_dim) == (512, 64, 128)
    assert [layer.experts for layer in a.layers] == [0, 8, 8]
    a = gguf("gemma3", block_count=6, attention__sliding_window=1024)
    assert kinds(a) == {"sliding": 5, "full": 1}
    listed = [True, False, True]
    a = gguf(
        "x",
        block_count=3,
        attention__sliding_window=9,
        attention__sliding_window_pattern=listed,
    )
    assert [layer.kind for layer in a.layers] == ["sliding", "full", "sliding"]


def test_what_a_checkpoint_tells(tmp_path):
    contents = Contents(tmp_path, "safetensors", configs={"config.json": config("llama-3-70b")})
    assert read_architecture(contents).heads == 64
    assert read_architecture(Contents(tmp_path, "none")).layers == ()
