"""Configs that are wrong, huge or made to be slow: a fault that names the field, soon."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from volta_runtime.checkpoint.contents import Contents
from volta_runtime.checkpoint.quantization import DIALECTS, patterns, read_quantization

WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def read(config):
    configs = {"config.json": {"quantization_config": config}}
    return read_quantization(Contents(Path("/m"), "safetensors", configs=configs))


def ct(**more):
    group = {"targets": ["Linear"], "weights": WEIGHTS}
    return {"quant_method": "compressed-tensors", "config_groups": {"g": group}, **more}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ([], "quantization_config is a list of 0, not an object"),
        ({}, "quantization_config.quant_method is None, not the name of a method"),
        ({"quant_method": 4}, "quantization_config.quant_method is 4, not a string"),
        ({"quant_method": "quark"}, "quantization_config.quant_method: quark is none that"),
        (ct(config_groups=[]), "config_groups is a list of 0, not an object"),
        (ct(config_groups={"g": "W4A16"}), "config_groups.g is 'W4A16', not an object"),
        (ct(ignore={"a": 1}), "quantization_config.ignore is an object of 1, not a list of"),
        (ct(ignore=["re:(x"]), "'re:(x' cannot be used as a pattern"),
        (ct(ignore=["re:a**"]), "'re:a**' cannot be used as a pattern"),
        (
            ct(
                config_groups={"g": {"targets": ["Linear"], "weights": {**WEIGHTS, "num_bits": []}}}
            ),
            "config_groups.g.weights.num_bits is a list of 0, not a whole number",
        ),
        (
            ct(config_groups={"g": {"targets": 3, "weights": WEIGHTS}}),
            "config_groups.g.targets is 3, not a list of strings",
        ),
        (
            ct(config_groups={"g": {"targets": ["x"], "weights": {**WEIGHTS, "group_size": 0}}}),
            "config_groups.g.weights.group_size is 0, not a positive whole number",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "INT3"},
            "quantization_config.quant_algo: INT3 is none that Volta knows",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": []},
            "quantization_config.quantized_layers is a list of 0, not an object",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, "x"]},
            "weight_block_size is a list of 2, not a list of 2 positive whole numbers",
        ),
        (
            {"quant_method": "nvfp4", "scale_dtype": "int8"},
            "quantization_config.scale_dtype is 'int8', not ",
        ),
        ({"quant_method": "gptq", "bits": True}, "quantization_config.bits is True, not a whole"),
        ({"quant_method": "gptq", "dynamic": {"(": {}}}, "'(' cannot be used as a pattern"),
        ({"quant_method": "awq", "version": "gemv_fast"}, "version: gemv_fast is none that"),
    ],
)
def test_the_field_is_named(config, field):
    quantization = read(config)
    faults = (*quantization.faults, *quantization.pattern_faults())
    assert any(field in fault.message for fault in faults), [fault.message for fault in faults]
    assert {fault.check for fault in faults} == {"quant-config"}
    assert all(fault.file.name == "config.json" and len(fault.message) < 300 for fault in faults)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
_KEYS = (
    "bits",
    "config_groups",
    "dynamic",
    "exclude_modules",
    "fmt",
    "format",
    "group_size",
    "ignore",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "lm_head",
    "load_in_8bit",
    "modules_to_not_convert",
    "quant_algo",
    "quantized_layers",
    "scale_dtype",
    "sparsity_config",
    "sym",
    "targets",
    "type",
    "version",
    "weight_block_size",
    "weights",
    "num_bits",
    "strategy",
    "input_activations",
)
_OBJECTS = st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=6)
_DEEP = st.recursive(
    _OBJECTS, lambda inner: st.dictionaries(st.sampled_from(_KEYS), inner | _VALUES, max_size=4)
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=_DEEP, method=st.sampled_from(sorted(DIALECTS)))
def test_any_types_anywhere(config, method):
    quantization = read({**config, "quant_method": method})
    quantization.scheme_of("model.layers.0.mlp.up_proj", "Linear")
    for fault in (*quantization.faults, *quantization.pattern_faults()):
        assert len(fault.message) < 500


MODULES = [f"model.language_model.layers.{n % 48}.mlp.experts.{n}.up_proj" for n in range(20_000)]


def seconds(quantization, modules=MODULES):
    begin = time.perf_counter()
    for name in modules:
        quantization.scheme_of(name, "Linear")
    return time.perf_counter() - begin


def test_three_hundred_globs_over_twenty_thousand_modules():
    globs = [f"model.language_model.layers.{n}.*_hyper_connection*" for n in range(292)]
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": globs}
    quantization = read(config)
    assert seconds(quantization) < 1  # a loaded machine; alone it is 0.15 s
    assert quantization.pattern_faults() == ()


@pytest.mark.parametrize(
    "pattern",
    [
        "re:(.*)*(.*)*(.*)*x",
        "re:(a|a)*(?!x)(a*)*(.*)*y",
        "re:(.+)+\\1(?=z)",
        "re:" + "(" * 5000 + "x" + ")" * 5000,
        "re:((.{0,100}){0,100}){0,100}x",
    ],
    ids=["nested", "looking ahead", "back reference", "deep", "counted"],
)
def test_hostile_patterns_end_soon(pattern, monkeypatch):
    monkeypatch.setattr(patterns, "SECONDS", 0.3)
    begin = time.perf_counter()
    quantization = read(ct(ignore=[pattern]))
    seconds(quantization, ["a" * 200, *MODULES])
    assert time.perf_counter() - begin < 4
    told = quantization.pattern_faults()
    assert quantization.scheme_of(MODULES[0], "Linear") is not None or not told


def test_time_that_is_over_is_told(monkeypatch):
    monkeypatch.setattr(patterns, "SECONDS", 0.05)
    quantization = read(ct(ignore=["re:(a|aa)+(?!x)$"]))
    quantization.scheme_of("a" * 60 + "b", "Linear")
    assert [fault.message for fault in quantization.pattern_faults()] == [
        "the patterns take longer than 0.05 s"
    ]


def test_looking_around_is_sound():
    quantization = read(ct(ignore=[r"re:.*mlp\.(?!up_proj).*"]))
    assert quantization.scheme_of("model.layers.0.mlp.gate_proj", "Linear") is None
    assert quantization.scheme_of("model.layers.0.mlp.up_proj", "Linear") is not None
    assert quantization.pattern_faults() == ()


def test_huge_lists():
    begin = time.perf_counter()
    names = [f"model.layers.{n}.mlp.up_proj" for n in range(200_000)]
    quantization = read(ct(ignore=names))
    assert quantization.scheme_of(names[-1], "Linear") is None
    many = read(ct(ignore=[f"re:x{n}.*" for n in range(50_000)]))
    assert "one of 50000 patterns" in many.pattern_faults()[0].message
    group = {"targets": ["re:x.*"], "weights": WEIGHTS}
    several = read(ct(config_groups={f"g{n}": group for n in range(5000)}))
    assert "5000 groups of targets" in several.faults[0].message
    assert time.perf_counter() - begin < 4
