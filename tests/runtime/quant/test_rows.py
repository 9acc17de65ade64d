"""The rows of the formats: whole, recognised; each fault of a module named with its sides."""

from pathlib import Path

import pytest

from volta_runtime.checkpoint.formats import (
    BY_NAME,
    FORMATS,
    by_module,
    document,
    read,
    recognise,
    unrecognised,
)
from volta_runtime.checkpoint.formats.shapes import template
from volta_runtime.checkpoint.scheme import Scheme
from volta_runtime.checkpoint.tensors import TensorInfo
from volta_runtime.quant import DEQUANTIZERS, dequantize

FILE = Path("model.safetensors")
DOCUMENT = Path(__file__).parents[3] / "docs" / "formats.md"


def module(**tensors):
    """Tensors of module `m` by parameter, each "DTYPE" and shape."""
    return {
        name: TensorInfo(f"m.{name}", dtype, tuple(shape), FILE, (0, 0))
        for name, (dtype, *shape) in tensors.items()
    }


def scheme(row, group=None):
    return Scheme(row, Path("config.json"), "quantization_config", group=group)


def test_the_document_is_made_of_the_rows():
    assert DOCUMENT.read_text(encoding="utf-8") == document.markdown(), (
        "run `python -m volta_runtime.checkpoint.formats.document > docs/formats.md`"
    )


@pytest.mark.parametrize("row", FORMATS, ids=[row.name for row in FORMATS])
def test_a_row_is_whole(row):
    assert BY_NAME[row.name] is row
    assert row.formula
    assert row.source
    assert row.bits > 0
    assert (row.name in DEQUANTIZERS) != bool(row.refused)
    for parameter in row.parameters:
        assert parameter.dtypes
        assert all(template(text).text({}) == text for text in parameter.shapes)
        if parameter.role in ("scale", "global", "columns"):
            untold = parameter.optional and parameter.check == "nvfp4-global"  # the house form's
            assert parameter.direction in ("multiply", "divide") or untold


def test_a_refused_row_says_why():
    with pytest.raises(ValueError, match=r"NF4 and FP4 of bitsandbytes is not dequantised: its"):
        dequantize("bnb-nf4", {})


NVFP4 = {"weight_packed": ("U8", 64, 32), "weight_scale": ("F8_E4M3", 64, 4)}
CT = NVFP4 | {"weight_global_scale": ("F32", 1)}
MODELOPT = {
    "weight": ("U8", 64, 32),
    "weight_scale": ("F8_E4M3", 64, 4),
    "weight_scale_2": ("F32",),
}
INT4 = {
    "weight_packed": ("I32", 64, 16),
    "weight_scale": ("BF16", 64, 4),
    "weight_shape": ("I64", 2),
}
FP8 = {"weight": ("F8_E4M3", 256, 384)}
AWQ = {"qweight": ("I32", 128, 32), "qzeros": ("I32", 4, 32), "scales": ("F16", 4, 256)}
GPTQ = {"qweight": ("I32", 16, 256), "qzeros": ("I32", 4, 32), "scales": ("F16", 4, 256)}
NF4 = {
    "weight": ("U8", 1024, 1),
    "weight.absmax": ("F32", 32),
    "weight.quant_map": ("F32", 16),
    "weight.quant_state.bitsandbytes__nf4": ("U8", 97),
}

# Tensors, what the config says, then row, shape and group.
LAYOUTS = {
    "dense": ({"weight": ("BF16", 8, 4), "bias": ("BF16", 8)}, None, "dense", (8, 4), None),
    "norm": ({"weight": ("F32", 8)}, None, "dense", (8,), None),
    "ct": (CT, None, "nvfp4-pack-quantized", (64, 64), (1, 16)),
    "ct w4a4": (
        CT | {"input_global_scale": ("F32", 1)},
        None,
        "nvfp4-pack-quantized",
        (64, 64),
        (1, 16),
    ),
    "ct group 32 as declared": (
        CT | {"weight_scale": ("F8_E4M3", 64, 2)},
        scheme("nvfp4-pack-quantized", (1, 32)),
        "nvfp4-pack-quantized",
        (64, 64),
        (1, 32),
    ),
    "modelopt": (MODELOPT, None, "modelopt-nvfp4", (64, 64), (1, 16)),
    "tensorrt-llm": (MODELOPT, scheme("nvfp4-g16"), "nvfp4-g16", (64, 64), (1, 16)),
    "modelopt experts": (
        {
            "weight": ("U8", 3, 64, 32),
            "weight_scale": ("F8_E4M3", 3, 64, 4),
            "weight_scale_2": ("F32", 3),
        },
        None,
        "modelopt-nvfp4",
        (3, 64, 64),
        (1, 16),
    ),
    "awq in modelopt": (
        MODELOPT | {"pre_quant_scale": ("BF16", 64)},
        None,
        "modelopt-nvfp4-awq",
        (64, 64),
        (1, 16),
    ),
    "house, group 32": (
        {"weight": ("U8", 64, 32), "weight_scale": ("F32", 64, 2)},
        scheme("nvfp4-g32", (1, 32)),
        "nvfp4-g32",
        (64, 64),
        (1, 32),
    ),
    "house, blocks": (
        {"weight": ("U8", 256, 32), "weight_scale": ("BF16", 2, 2)},
        scheme("nvfp4-block", (128, 32)),
        "nvfp4-block",
        (256, 64),
        (128, 32),
    ),
    "mxfp4": (
        {"weight_packed": ("U8", 64, 32), "weight_scale": ("U8", 64, 2)},
        None,
        "mxfp4-pack-quantized",
        (64, 64),
        (1, 32),
    ),
    "gpt-oss": (
        {"blocks": ("U8", 4, 64, 2, 16), "scales": ("U8", 4, 64, 2), "bias": ("BF16", 4, 64)},
        None,
        "mxfp4-blocks",
        (4, 64, 64),
        (1, 32),
    ),
    "fp8 tensor": (FP8 | {"weight_scale": ("F32",)}, None, "fp8-tensor", (256, 384), (0, 0)),
    "fp8 channel": (
        FP8 | {"weight_scale": ("BF16", 256, 1)},
        None,
        "fp8-channel",
        (256, 384),
        (1, 0),
    ),
    "fp8 block": (
        FP8 | {"weight_scale_inv": ("F32", 2, 3)},
        None,
        "fp8-block",
        (256, 384),
        (128, 128),
    ),
    "fp8 block by the other name": (
        FP8 | {"weight_scale": ("F32", 2, 3)},
        None,
        "fp8-block",
        (256, 384),
        (128, 128),
    ),
    "fp8 block with the dimensions it was made over": (
        FP8 | {"weight_scale": ("F32", 2, 1, 3, 1)},
        scheme("modelopt-fp8", (128, 128)),
        "modelopt-fp8",
        (256, 384),
        (128, 128),
    ),
    "mxfp8": (FP8 | {"weight_scale": ("U8", 256, 12)}, None, "mxfp8", (256, 384), (1, 32)),
    "one block is no tensor": (
        {"weight": ("F8_E4M3", 64, 64), "weight_scale": ("F32", 1, 1)},
        scheme("float-quantized", (128, 128)),
        "float-quantized",
        (64, 64),
        (128, 128),
    ),
    "int4": (INT4, None, "pack-quantized-int4", (64, 128), (1, 32)),
    "int8": (INT4, scheme("pack-quantized-int8"), "pack-quantized-int8", (64, 64), (1, 16)),
    "nf4": (NF4, None, "bnb-nf4", (1024, 1), (1, 64)),
    "nf4 as a trainer kept it": (
        NF4 | {"weight": ("BF16", 512, 1)},
        None,
        "bnb-nf4",
        (512, 1),
        (1, 64),
    ),
    "llm.int8": (
        {"weight": ("I8", 64, 32), "SCB": ("F32", 64), "weight_format": ("U8",)},
        None,
        "bnb-int8",
        (64, 32),
        (1, 0),
    ),
    "awq": (AWQ, None, "awq", (256, 128), (1, 32)),
    "awq, gemv, padded": (
        {
            "qweight": ("I32", 256, 1376),
            "scales": ("F16", 256, 88),
            "qzeros": ("I32", 256, 11),
        },
        None,
        "awq-gemv",
        (256, 11008),
        (1, 128),
    ),
    "gptq": (GPTQ | {"g_idx": ("I32", 128)}, None, "gptq", (256, 128), (1, 32)),
    "gptq, 8 bits": (
        GPTQ | {"qweight": ("I32", 32, 256), "qzeros": ("I32", 4, 64)},
        None,
        "gptq",
        (256, 128),
        (1, 32),
    ),
}


@pytest.mark.parametrize(("scale", "wrong"), [((4,), []), ((1,), []), ((3,), ["m.scale"])])
def test_a_stack_of_gguf_may_have_a_scale_for_each_expert(scale, wrong):
    held = module(weight=("NVFP4", 4, 64, 128), scale=("F32", *scale))
    row = recognise(held, container="gguf")
    reading = read(row, held)
    assert (row.name, reading.shape) == ("gguf-nvfp4", (4, 64, 128))
    assert [fault.tensor for fault in reading.faults] == wrong


@pytest.mark.parametrize(
    ("tensors", "says", "row", "shape", "group"), LAYOUTS.values(), ids=LAYOUTS
)
def test_layout(tensors, says, row, shape, group):
    held = module(**tensors)
    found = recognise(held, says)
    assert found is BY_NAME[row]
    reading = read(found, held, says)
    assert (reading.shape, reading.group, reading.faults) == (shape, group, ())


# Tensors, changes (None takes one away), what the config says; check, tensor, expected and found.
FAULTS = {
    "scale is F32": (
        CT,
        {"weight_scale": ("F32", 64, 4)},
        "nvfp4-pack-quantized",
        ("nvfp4-scale", "weight_scale", "F8_E4M3", "F32"),
    ),
    "scale is missing": (
        CT,
        {"weight_scale": None},
        "nvfp4-pack-quantized",
        ("nvfp4-scale", "weight_scale", "F8_E4M3 [64, 4]", "no such tensor"),
    ),
    "global is missing": (
        MODELOPT,
        {"weight_scale_2": None},
        "modelopt-nvfp4",
        ("nvfp4-global", "weight_scale_2", "F32 [] or [1]", "no such tensor"),
    ),
    "global is BF16": (
        CT,
        {"weight_global_scale": ("BF16", 1)},
        "nvfp4-pack-quantized",
        ("nvfp4-global", "weight_global_scale", "F32", "BF16"),
    ),
    "global has a shape": (
        CT,
        {"weight_global_scale": ("F32", 64)},
        "nvfp4-pack-quantized",
        ("nvfp4-global", "weight_global_scale", "[1]", "[64]"),
    ),
    "scale is transposed": (
        MODELOPT,
        {"weight_scale": ("F8_E4M3", 4, 64)},
        "modelopt-nvfp4",
        ("nvfp4-scale", "weight_scale", "[64, 4]", "[4, 64]", "transposed"),
    ),
    "scale is swizzled": (
        MODELOPT,
        {"weight_scale": ("U8", 512)},
        "nvfp4-g16",
        ("nvfp4-scale", "weight_scale", "F8_E4M3 [64, 4]", "U8 [512]", "TensorRT-LLM"),
    ),
    "group is not the declared": (
        CT,
        {"weight_scale": ("F8_E4M3", 64, 2)},
        "nvfp4-pack-quantized",
        ("nvfp4-scale", "weight_scale", "[64, 4]", "[64, 2]"),
    ),
    "scale of the other method": (
        CT,
        {"weight_scale_2": ("F32",)},
        "nvfp4-pack-quantized",
        ("scale-layout", "weight_scale_2", "no such tensor", "F32 []"),
    ),
    "fp8 without scale": (
        FP8,
        {},
        "fp8-block",
        ("scale-layout", "weight_scale_inv", "F16/BF16/F32/F8_E8M0 [2, 3]", "no such tensor"),
    ),
    "blocks of another size": (
        FP8,
        {"weight_scale_inv": ("F32", 4, 6)},
        "fp8-block",
        ("scale-layout", "weight_scale_inv", "[2, 3]", "[4, 6]"),
    ),
    "zero points of another width": (
        INT4,
        {"weight_zero_point": ("I32", 12, 4)},
        "pack-quantized-int4",
        ("scale-layout", "weight_zero_point", "[8, 1] or [8, 4]", "[12, 4]"),
    ),
    "gptq without zeros": (
        GPTQ,
        {"qzeros": None},
        "gptq",
        ("scale-layout", "qzeros", "I32 [K/G, N*b/32]", "no such tensor"),
    ),
    "an expert lacks its scale": (
        {"blocks": ("U8", 4, 64, 2, 16)},
        {"scales": ("U8", 3, 64, 2)},
        "mxfp4-blocks",
        ("scale-layout", "scales", "[4, 64, 2]", "[3, 64, 2]"),
    ),
}


@pytest.mark.parametrize(("tensors", "changes", "says", "fault"), FAULTS.values(), ids=FAULTS)
def test_fault(tensors, changes, says, fault):
    held = module(**{name: spec for name, spec in (tensors | changes).items() if spec})
    says = scheme(says)
    row = recognise(held, says)
    assert row is BY_NAME[says.format]
    (found,) = read(row, held, says).faults
    check, tensor, expected, seen, *words = fault
    assert (found.check, found.tensor, found.expected, found.found) == (
        check,
        f"m.{tensor}",
        expected,
        seen,
    )
    assert found.file == FILE
    assert all(word in found.message for word in words)


def test_a_row_that_fits_wins_over_the_promised():
    assert recognise(module(**INT4), scheme("nvfp4-pack-quantized")).name == "pack-quantized-int4"


def test_a_scale_without_its_weight_is_an_orphan():
    held = module(weight_scale=("F32", 64, 1))
    assert recognise(held) is None
    fault = unrecognised("m", held)
    assert (fault.check, fault.tensor) == ("scale-layout", "m.weight_scale")
    assert "the weight that it belongs to is missing" in fault.message


def test_masks_and_tables_are_no_weights():
    mask = {"weight": TensorInfo("h.0.attn.bias", "U8", (1, 1, 64, 64), FILE, (0, 0))}
    row = recognise(mask)
    assert row is BY_NAME["dense"]
    assert read(row, mask).faults == ()


def test_what_a_stack_lacks_has_the_name_that_it_would_have():
    stack = {"weight": TensorInfo("mlp.experts.up_proj", "U8", (4, 64, 32), FILE, (0, 0))}
    stack["weight_scale"] = TensorInfo(
        "mlp.experts.up_proj_weight_scale", "F8_E4M3", (4, 64, 4), FILE, (0, 0)
    )
    (fault,) = read(BY_NAME["modelopt-nvfp4"], stack).faults
    assert fault.tensor == "mlp.experts.up_proj_weight_scale_2"


def test_codes_that_no_format_has():
    held = module(weight=("U16", 64, 64))
    assert recognise(held) is None
    assert "holds weight U16" in unrecognised("m", held).message


def test_tensors_by_module():
    names = [
        "a.q_proj.weight", "a.q_proj.weight_scale", "a.q_proj.bias", "a.experts.up_blocks",
        "a.experts.up_scales", "a.experts.up_bias", "a.experts.w", "a.experts.w_weight_scale",
        "a.A_log", "a.dt_bias", "a.norm.scale", "b.weight", "b.weight.absmax", "b.scale",
    ]  # fmt: skip
    tensors = {name: TensorInfo(name, "F32", (1,), FILE, (0, 4)) for name in names}
    assert {name: [*held] for name, held in by_module(tensors).items()} == {
        "a.q_proj": ["weight", "weight_scale", "bias"],
        "a.experts.up": ["blocks", "scales", "bias"],
        "a.experts.w": ["weight", "weight_scale"],
        "a.A_log": ["weight"],
        "a.dt_bias": ["weight"],
        "a.norm.scale": ["weight"],
        "b": ["weight", "weight.absmax", "scale"],
    }
