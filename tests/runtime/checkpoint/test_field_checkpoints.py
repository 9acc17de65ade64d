"""The module maps of the published layouts that V100 owners serve."""

from collections import Counter
from pathlib import Path

import field_checkpoints as field
import pytest

from volta_runtime.checkpoint import inspect


def counts(checkpoint):
    """Modules by format, without those that are dense."""
    found = Counter(module.format.name for module in checkpoint.modules.values())
    del found["dense"]
    return dict(found)


def problems(checkpoint):
    """All but what is only worth knowing, and that there is no tokenizer here."""
    left_out = ("tokenizer-vocab", "chat-template")
    return [f for f in checkpoint.faults if f.level != "info" and f.check not in left_out]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (field.quasar, {"nvfp4-pack-quantized": 16 * 7 + 48 * 8}),
        (field.unsloth, {"nvfp4-pack-quantized": 168, "float-quantized": 233}),
        (field.radixark, {"modelopt-nvfp4": 193, "modelopt-fp8": 208}),
        (field.nvidia_27b, {"modelopt-nvfp4": 193, "modelopt-fp8": 208}),
        (field.nvidia_35b, {"modelopt-nvfp4": 40 * 27 + 1, "modelopt-fp8": 130}),
        (field.flash_next, {"modelopt-nvfp4": 48 * 24, "modelopt-fp8": 16, "fp8-block": 24}),
        (field.reexport, {"modelopt-nvfp4": 24}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_module_maps(tmp_path: Path, make, expected):
    checkpoint = inspect(make(tmp_path / "m"))
    assert problems(checkpoint) == []
    assert counts(checkpoint) == expected
    promised = Counter(module.scheme is not None for module in checkpoint.modules.values())
    assert promised[True] == sum(expected.values())


def test_late_layers_are_of_the_first_group_that_claims_them(tmp_path: Path):
    modules = inspect(field.unsloth(tmp_path / "m")).modules
    assert modules[f"{field.TEXT}layers.55.mlp.up_proj"].group == (1, 16)
    late = modules[f"{field.TEXT}layers.56.mlp.up_proj"]
    assert (late.format.name, late.group) == ("float-quantized", (1, 0))
    assert late.scheme.where == "quantization_config.config_groups.group_0"
    assert modules["mtp.layers.0.mlp.up_proj"].scheme is None


def test_parts_of_a_table_have_its_scale(tmp_path: Path):
    modules = inspect(field.flash_next(tmp_path / "m")).modules
    table = f"{field.TEXT}layers.1.ple.ple_embedding.ngram_embedding"
    assert table not in modules
    assert modules[f"{table}.shard_15"].group == (0, 0)


def test_mixfp4_is_refused_by_name(tmp_path: Path):
    """Its tensors have the names and dtypes of NVFP4; the config alone tells."""
    checkpoint = inspect(field.mixfp4(tmp_path / "m"))
    fails = [fault for fault in checkpoint.faults if fault.level == "fail"]
    assert {fault.check for fault in fails} == {"quant-config"}
    assert "mixfp4-pack-quantized with 4 bits is none that Volta knows" in fails[0].message


def test_a_quantised_head_is_told(tmp_path: Path):
    checkpoint = inspect(field.nvidia_35b(tmp_path / "m", layers=4))
    told = [fault for fault in checkpoint.faults if fault.check == "head-tied"]
    assert [(fault.level, fault.tensor, fault.found) for fault in told] == [
        ("info", "lm_head", "modelopt-nvfp4")
    ]
