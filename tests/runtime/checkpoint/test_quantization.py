"""Configs of quantised models in their dialects: which module has which scheme."""

from pathlib import Path

import pytest

from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.formats import BY_NAME
from volta_runtime.checkpoint.quantization import (
    compressed_tensors,
    modelopt,
    read_quantization,
)

FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
L0 = "model.layers.0"


def read(config=None, **files):
    """Of quantization_config, and of other files by their stem."""
    configs = {f"{stem}.json": content for stem, content in files.items()}
    if config is not None:
        configs["config.json"] = {"quantization_config": config}
    return read_quantization(Contents(Path("/m"), "safetensors", configs=configs))


def groups(*targets, ignore=(), **more):
    """compressed-tensors with a group for each (targets, weights)."""
    held = {f"group_{n}": {"targets": t, "weights": w} for n, (t, w) in enumerate(targets)}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": held,
        "ignore": list(ignore),
        **more,
    }


def scheme(config, module, class_name="Linear"):
    quantization = read(config)
    assert quantization.faults == ()
    return quantization.scheme_of(module, class_name)


def formats(config, *modules):
    found = [scheme(config, module) for module in modules]
    return [one and one.format for one in found]


def test_every_promise_is_a_row():
    names = {*compressed_tensors._FORMATS.values()}
    names |= {name for name, _, _ in modelopt._ALGOS.values()}
    assert names <= BY_NAME.keys()


def test_without_a_config_nothing_is_promised():
    quantization = read()
    assert (quantization.method, quantization.faults) == ("", ())
    assert quantization.scheme_of(f"{L0}.mlp.up_proj", "Linear") is None


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_a_name_goes_before_a_pattern_before_a_class(order):
    targets = [
        ([f"{L0}.mlp.up_proj"], FLOAT8),
        ([r"re:.*mlp\..*"], FLOAT4),
        (["Linear"], {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
    ]
    config = groups(*(targets[n] for n in order), ignore=["re:.*down_proj$"])
    modules = [f"{L0}.{name}" for name in ("mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj")]
    expected = ["float-quantized", "nvfp4-pack-quantized", "pack-quantized-int4", None]
    assert formats(config, *modules, f"{L0}.mlp.down_proj") == expected
    assert scheme(config, "model.embed_tokens", "Embedding") is None


def test_the_first_of_two_patterns_counts():
    config = groups(([r"re:.*layers\.0\.mlp.*"], FLOAT8), ([r"re:.*mlp.*"], FLOAT4))
    found = formats(config, f"{L0}.mlp.up_proj", "model.layers.1.mlp.up_proj")
    assert found == ["float-quantized", "nvfp4-pack-quantized"]


@pytest.mark.parametrize(
    ("stored", "weights", "expected", "group"),
    [
        ("nvfp4-pack-quantized", FLOAT4, "nvfp4-pack-quantized", (1, 16)),
        ("mixed-precision", FLOAT4, "nvfp4-pack-quantized", (1, 16)),
        (
            "mxfp4-pack-quantized",
            {**FLOAT4, "strategy": "group", "group_size": 32},
            "mxfp4-pack-quantized",
            (1, 32),
        ),
        ("float-quantized", FLOAT8, "float-quantized", (1, 0)),
        ("float-quantized", {**FLOAT8, "strategy": "tensor"}, "float-quantized", (0, 0)),
        (
            "float-quantized",
            {**FLOAT8, "strategy": "block", "block_structure": [128, 128]},
            "float-quantized",
            (128, 128),
        ),
        (
            "pack-quantized",
            {"num_bits": 8, "type": "int", "strategy": "channel"},
            "pack-quantized-int8",
            (1, 0),
        ),
        (
            "int-quantized",
            {"num_bits": 8, "type": "int", "strategy": "channel"},
            "int-quantized",
            (1, 0),
        ),
        ("naive-quantized", {"num_bits": 8, "type": "int"}, "int-quantized", (0, 0)),
        ("", {"num_bits": 8, "type": "int"}, "pack-quantized-int8", (0, 0)),
        ("", {**FLOAT8, "strategy": "group", "group_size": 32}, "mxfp8", (1, 32)),
        ("int-quantized", {"num_bits": 4, "type": "int"}, "int-quantized", (0, 0)),
        ("dense", FLOAT4, None, None),
    ],
)
def test_compressed_tensors_formats(stored, weights, expected, group):
    config = groups((["Linear"], weights), format=stored)
    found = scheme(config, f"{L0}.mlp.up_proj")
    assert (found and found.format, found and found.group) == (expected, group)


def test_a_group_has_its_own_format():
    config = groups((["Linear"], FLOAT8), format="mixed-precision")
    config["config_groups"]["group_0"]["format"] = "naive-quantized"
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "float"}
    found = scheme(config, f"{L0}.mlp.up_proj")
    assert (found.format, found.activations) == ("float-quantized", "float8")


def test_integers_are_a_byte_each_beside_integers():
    config = groups((["Linear"], {"num_bits": 8, "type": "int", "strategy": "channel"}))
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "int"}
    assert scheme(config, f"{L0}.mlp.up_proj").format == "int-quantized"


def test_sparsity_is_told_and_not_judged():
    config = groups((["Linear"], FLOAT4), sparsity_config={"format": "sparse-24-bitmask"})
    assert [(f.check, f.level) for f in read(config).faults] == [("quant-config", "info")]


MIXED = {
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "model.language_model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
        "model.language_model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "mtp.layers.0.mlp.experts": {"quant_algo": "FP8_PB_WO", "group_size": 128},
        "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    },
}


@pytest.mark.parametrize("file", ["config", "hf_quant_config"])
def test_modelopt_names_modules_and_what_is_below_them(file):
    if file == "config":
        quantization = read({"quant_method": "modelopt", **MIXED, "ignore": ["mtp.fc*"]})
    else:
        quantization = read(hf_quant_config={"quantization": MIXED})
    assert quantization.faults == ()
    found = {
        name: quantization.scheme_of(name, "Linear")
        for name in (
            "model.language_model.layers.0.mlp.experts.17.up_proj",
            "model.language_model.layers.0.self_attn.q_proj",
            "mtp.layers.0.mlp.experts.3.up_proj",
            "lm_head",
            "model.language_model.layers.0.self_attn.o_proj",
        )
    }
    assert [one and (one.format, one.group) for one in found.values()] == [
        ("modelopt-nvfp4", (1, 16)),
        ("modelopt-fp8", (0, 0)),
        ("modelopt-fp8", (128, 128)),
        ("modelopt-nvfp4", (1, 16)),
        None,
    ]


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        ("NVFP4", "modelopt-nvfp4"),
        ("W4A16_NVFP4", "modelopt-nvfp4"),
        ("NVFP4_AWQ", "modelopt-nvfp4-awq"),
        ("W4A8_NVFP4_FP8", "modelopt-nvfp4"),
        ("FP8", "modelopt-fp8"),
        ("fp8_pb_wo", "modelopt-fp8"),  # as ModelOpt 0.47 writes it
        ("MXFP8", "mxfp8"),
    ],
)
def test_modelopt_algorithms(algo, expected):
    config = {"quant_method": "modelopt", "quant_algo": algo, "group_size": 16}
    assert formats(config, f"{L0}.mlp.up_proj") == [expected]


def test_modelopt_leaves_out_by_globs():
    exclude = ["lm_head", "model.layers.*.self_attn*", "*visual*", "model.layers.[01].mlp.gate"]
    config = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": exclude}
    quantization = read(hf_quant_config={"quantization": config})
    left = ["lm_head", "model.layers.9.self_attn.q_proj", "model.visual.blocks.0.attn.qkv"]
    for name in (*left, f"{L0}.mlp.gate"):
        assert quantization.scheme_of(name, "Linear") is None, name
    for name in ("model.layers.2.mlp.gate", f"{L0}.mlp.gate_proj"):
        assert quantization.scheme_of(name, "Linear") is not None, name


def test_modelopt_nvfp4_needs_a_group_size():
    faults = read(hf_quant_config={"quantization": {"quant_algo": "NVFP4"}}).faults
    assert [(f.check, f.level, f.file.name) for f in faults] == [
        ("group-size-config", "fail", "hf_quant_config.json")
    ]
    inside = {"group_0": {"targets": ["Linear"], "weights": FLOAT4}}
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": inside}
    assert scheme(config, f"{L0}.mlp.up_proj").group == (1, 16)


@pytest.mark.parametrize(
    ("config", "expected", "group"),
    [
        ({"group_size": 16}, "nvfp4-g16", (1, 16)),
        ({}, "nvfp4-g16", (1, 16)),
        ({"group_size": 32, "scale_dtype": "fp32"}, "nvfp4-g32", (1, 32)),
        ({"weight_block_size": [128, 32], "scale_dtype": "bf16"}, "nvfp4-block", (128, 32)),
        ({"weight_block_size": [1, 16]}, "nvfp4-g16", (1, 16)),
    ],
)
def test_nvfp4_alone(config, expected, group):
    config = {"quant_method": "nvfp4", **config, "modules_to_not_convert": ["lm_head", "mlp.gate"]}
    found = scheme(config, f"{L0}.mlp.up_proj")
    assert (found.format, found.group, found.blanket) == (expected, group, True)
    assert formats(config, "lm_head", f"{L0}.mlp.gate") == [None, None]
    assert scheme(config, f"{L0}.mlp.gate_proj") is not None


@pytest.mark.parametrize(
    ("config", "expected", "group"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block", (128, 128)),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8-tensor", None),
        ({"quant_method": "fbgemm_fp8"}, "fp8-channel", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", (1, 128)),
        ({"quant_method": "awq_marlin", "bits": 4, "group_size": -1}, "awq", (1, 0)),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "gptq", (1, 32)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-nf4", None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-int8", None),
    ],
)
def test_methods_that_mean_all_modules(config, expected, group):
    found = scheme(config, f"{L0}.mlp.up_proj")
    assert (found.format, found.group, found.blanket) == (expected, group, True)


def test_mxfp4_means_experts():
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    config = {"quant_method": "mxfp4", "modules_to_not_convert": names}
    assert scheme(config, f"{L0}.mlp.experts.gate_up_proj", "Experts").format == "mxfp4-blocks"
    assert scheme(config, f"{L0}.self_attn.q_proj") is None


def test_configs_of_older_tools():
    old = read(quantize_config={"bits": 4, "group_size": 128, "desc_act": True, "sym": False})
    found = old.scheme_of(f"{L0}.mlp.up_proj", "Linear")
    assert (found.format, found.act_order, found.symmetric) == ("gptq", True, False)
    awq = read(quant_config={"w_bit": 4, "q_group_size": 64, "zero_point": True})
    found = awq.scheme_of(f"{L0}.mlp.up_proj", "Linear")
    assert (found.format, found.group, found.symmetric) == ("awq", (1, 64), False)


def test_gptq_of_one_kernel_is_not_gptq():
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}
    quantization = read(config)
    assert quantization.scheme_of(f"{L0}.mlp.up_proj", "Linear").format == "gptq-marlin"
    assert [(f.check, f.level, f.found) for f in quantization.faults] == [
        ("quant-config", "warn", "marlin")
    ]


def test_gptq_overrides_in_order():
    dynamic = {
        r"-:.*\.0\..*": {},
        r"+:.*\.[01]\..*": {"bits": 8, "group_size": 32},
        r".*down_proj": {"desc_act": True},
    }
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic}
    assert scheme(config, f"{L0}.mlp.down_proj") is None
    assert scheme(config, "model.layers.1.mlp.down_proj").bits == 8
    late = scheme(config, "model.layers.2.mlp.down_proj")
    assert (late.bits, late.group, late.act_order) == (4, (1, 128), True)
    assert scheme(config, "lm_head") is None
    assert scheme({**config, "lm_head": True}, "lm_head").bits == 4


WRAPPERS = ("", "model.", "language_model.model.", "model.language_model.")


@pytest.mark.parametrize("named", WRAPPERS)
@pytest.mark.parametrize("stored", WRAPPERS)
def test_wrappers_are_no_part_of_a_name(named, stored):
    module = f"{stored}layers.0.self_attn.q_proj"
    dots = named.replace(".", r"\.")
    for target in (
        f"{named}layers.0.self_attn.q_proj",
        rf"re:^{dots}layers\.\d+\.self_attn.*",
        rf"re:{named}layers.0.self_attn.q_proj$",
    ):
        assert formats(groups(([target], FLOAT4)), module) == ["nvfp4-pack-quantized"], target
        assert formats(groups((["Linear"], FLOAT4), ignore=[target]), module) == [None], target
    for name in (f"{named}layers.0.self_attn*", f"{named}layers.0.self_attn"):
        config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": [name]}
        assert formats(config, module) == [None], name
        assert formats(config, f"{stored}layers.1.self_attn.q_proj") != [None], name


def test_a_pattern_in_the_middle_may_name_the_wrapper():
    config = groups((["Linear"], FLOAT4), ignore=[r"re:.*language_model\.layers\.0.*"])
    assert formats(config, f"{L0}.mlp.up_proj") == [None]


def test_mtp_and_vision_are_other_modules():
    config = groups(([r"re:model\.layers\.\d+\.mlp.*"], FLOAT4))
    assert formats(config, "mtp.layers.0.mlp.up_proj", "model.visual.layers.0.mlp.up_proj") == [
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("named", "stored"),
    [
        ("self_attn.qkv_proj", "self_attn.k_proj"),
        ("mlp.gate_up_proj", "mlp.up_proj"),
        ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_z"),
        ("linear_attn.in_proj_b", "linear_attn.in_proj_ba"),
    ],
)
def test_fused_names(named, stored):
    ignore = [f"{L0}.{named}"]
    assert formats(groups((["Linear"], FLOAT4), ignore=ignore), f"{L0}.{stored}") == [None]
    config = {"quant_method": "awq", "modules_to_not_convert": ignore}
    assert formats(config, f"{L0}.{stored}") == [None]


def test_kv_caches_of_all_configs():
    own = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": FLOAT8}
    hf = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}}
    quantization = read(own, hf_quant_config=hf)
    assert [kv.dtype for kv in quantization.kv_caches] == ["fp8", "nvfp4"]
    [fault] = quantization.faults
    assert (fault.check, fault.expected, fault.found) == ("kv-scheme-conflict", "fp8", "nvfp4")
    hf["quantization"]["kv_cache_quant_algo"] = "FP8"
    assert read(own, hf_quant_config=hf).faults == ()


def test_a_router_is_no_joined_layer():
    config = groups((["Linear"], FLOAT4), ignore=[r"re:.*mlp\.gate"])
    assert formats(config, f"{L0}.mlp.up_proj") == ["nvfp4-pack-quantized"]
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*mlp.gate_up_proj*"]}
    assert formats(config, f"{L0}.mlp.up_proj") == [None]
