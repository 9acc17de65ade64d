"""Matrices of checkpoints, packed, against the dequantisers of numpy and of the libraries."""

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from volta_runtime.checkpoint import inspect
from volta_runtime.ops import packed
from volta_runtime.ops import packed_from as pf
from volta_runtime.ops.packed_gguf import PACKERS, pack_gguf
from volta_runtime.quant import dequantize
from volta_runtime.quant.gguf import layout

ROOT = Path(__file__).parents[1] / "data" / "checkpoints"

DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "I32": torch.int32,
    "I64": torch.int64,
}  # fmt: skip

# How a row of the formats is handed to its packer: tensors, block, whether GPTQ's zeros are v2.
PACK = {
    "nvfp4-pack-quantized": lambda t, _b, _v: pf.pack_nvfp4(
        t["weight_packed"], t["weight_scale"], 1 / t["weight_global_scale"]
    ),
    "modelopt-nvfp4": lambda t, _b, _v: pf.pack_nvfp4(
        t["weight"], t["weight_scale"], t["weight_scale_2"]
    ),
    "mxfp4-pack-quantized": lambda t, _b, _v: pf.pack_mxfp4(t["weight_packed"], t["weight_scale"]),
    "pack-quantized-int4": lambda t, _b, _v: pf.pack_int4(
        t["weight_packed"], t["weight_scale"], t.get("weight_zero_point"), t.get("weight_g_idx")
    ),
    "float-quantized": lambda t, block, _v: pf.pack_fp8(t["weight"], t["weight_scale"], block),
    "modelopt-fp8": lambda t, block, _v: pf.pack_fp8(t["weight"], t["weight_scale"], block),
    "awq": lambda t, _b, _v: pf.pack_awq(t["qweight"], t["qzeros"], t["scales"]),
    "gptq": lambda t, _b, v2: pf.pack_gptq(
        t["qweight"], t["qzeros"], t["scales"], t.get("g_idx"), v2
    ),
}
CHECKPOINTS = (
    "awq", "ct-fp8-block", "ct-fp8-channel", "ct-fp8-tensor", "ct-int4", "ct-int4-asym", "ct-mxfp4",
    "ct-nvfp4", "ct-nvfp4a16", "gptq-actorder", "gptq-asym", "gptq-sym", "gptq-v2", "modelopt-fp8",
    "modelopt-fp8-block", "modelopt-nvfp4", "modelopt-w4a16-nvfp4",
)  # fmt: skip


def tensor(info):
    begin, end = info.offsets
    data = torch.from_numpy(np.fromfile(info.file, np.uint8, end - begin, offset=begin))
    return data.view(DTYPES[info.dtype]).view(info.shape)


def array(t):
    """As the numpy dequantisers take it."""
    if t.dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu):
        t = t.view(torch.uint8)
    return (t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).numpy()


def assert_means(weight, expected):
    """The packed matrix is the other one, but for FP32's rounding and on CUDA FP16's."""
    ours = packed.dequantize(weight).cpu().double()
    theirs = torch.from_numpy(np.ascontiguousarray(expected)).double()
    assert ours.shape == theirs.shape
    minimum = weight.format in ("q4_1", "q4_k", "q5_k")
    room = theirs.abs().amax(1, keepdim=True) if minimum else theirs.abs()
    if weight.device.type == "cpu":
        room = 3e-7 * room
    else:  # of FP16, in which a row's largest weight becomes 2^14 or more
        room = 2**-10 * room + 2**-39 * theirs.abs().amax(1, keepdim=True)
    assert ((ours - theirs).abs() <= room).all()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_of_a_checkpoint(name, device):
    checkpoint, seen = inspect(ROOT / name), 0
    for module in checkpoint.modules.values():
        if not module.quantised or len(module.shape) != 2:
            continue
        tensors = {key: tensor(info) for key, info in module.tensors.items()}
        v2 = name == "gptq-v2"
        expected = dequantize(
            module.format.name, {k: array(t) for k, t in tensors.items()}, module.group, v2
        )
        there = {key: t.to(device) for key, t in tensors.items()}
        block = module.group if module.group and min(module.group) > 1 else None
        weight = PACK[module.format.name](there, block, v2)
        assert_means(weight, expected)
        assert (weight.perm is not None) == (name in ("gptq-actorder", "gptq-v2"))
        seen += 1
    assert seen > 0


def test_experts_of_gpt_oss(device):
    seen = 0
    for module in inspect(ROOT / "gpt-oss").modules.values():
        if module.format.name != "mxfp4-blocks":
            continue
        held = {key: tensor(info) for key, info in module.tensors.items()}
        expected = dequantize("mxfp4-blocks", {key: array(held[key]) for key in held})
        blocks, scales = (
            next(t for key, t in held.items() if key.endswith(end)) for end in ("blocks", "scales")
        )
        for i, weights in enumerate(expected):
            assert_means(pf.pack_mxfp4(blocks[i].to(device), scales[i].to(device)), weights)
            seen += 1
    assert seen > 0


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("n", [1, 45])
def test_any_block_of_gguf(kind, n, device):
    random = np.random.default_rng(n)
    block = layout(kind)
    rows = random.integers(0, 256, (n, 8 * block.itemsize), np.uint8)
    blocks = rows.reshape(-1).view(block)
    for name in ("d", "m", "dmin"):
        if name in block.names and block[name] == np.dtype("<f2"):
            blocks[name] = random.normal(scale=4, size=len(blocks)).astype("<f2")
    if kind == "NVFP4":
        blocks["d"] %= 128
    if kind == "MXFP4":
        blocks["e"] = random.integers(60, 180, len(blocks))
    weight = pack_gguf(kind, torch.from_numpy(rows).to(device))
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])
    if kind == "MXFP4" and device.type == "cuda":
        # Of weights 2^-28 of their row's largest and less, FP16 keeps not every bit.
        ours = packed.dequantize(weight).cpu().numpy()
        np.testing.assert_allclose(ours, expected, rtol=2**-10, atol=abs(expected).max() * 2**-38)
        return
    assert_means(weight, expected)
    np.testing.assert_array_equal(expected, dequantize(f"gguf-{kind.lower()}", {"weight": rows}))


def test_a_scale_beside_a_matrix_of_gguf(device):
    rows = torch.randint(0, 120, (3, 36), generator=torch.Generator().manual_seed(0))
    rows = rows.to(torch.uint8)
    expected = dequantize("gguf-nvfp4", {"weight": rows.numpy(), "scale": np.float32([0.3])})
    weight = pack_gguf("NVFP4", rows.to(device), torch.tensor([0.3], device=device))
    assert_means(weight, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_rows", [1, 128])
def test_house_forms(dtype, block_rows, device):
    generator = torch.Generator().manual_seed(0)
    n, k = 150, 160
    codes = torch.randint(0, 256, (n, k // 2), generator=generator).to(torch.uint8)
    scale = (torch.rand(-(-n // block_rows), k // 32, generator=generator) + 0.01).to(dtype)
    name, block = ("nvfp4-g32", (1, 32)) if block_rows == 1 else ("nvfp4-block", (128, 32))
    expected = dequantize(name, {"weight": codes.numpy(), "weight_scale": array(scale)}, block)
    weight = pf.pack_fp4(codes.to(device), scale.to(device), block_rows=block_rows)
    assert weight.format == ("fp4_bf16" if dtype == torch.bfloat16 else "fp4_f32")
    assert_means(weight, expected)
    multiplied = pf.pack_fp4(
        codes.to(device), scale.to(device), torch.tensor([0.25], device=device), block_rows
    )
    assert_means(multiplied, expected / 4)


def test_fused_shards_have_a_multiplier_for_each_row(device):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (6, 16), generator=generator).to(torch.uint8)
    scale = torch.randint(1, 127, (6, 2), generator=generator).to(torch.uint8)
    multiplier = torch.tensor([1.0, 1, 1e-3, 1e-3, 1e3, 1e3])
    expected = dequantize(
        "modelopt-nvfp4",
        {
            "weight": codes.numpy(),
            "weight_scale": scale.numpy(),
            "weight_scale_2": np.float32([1]),
        },
    )
    weight = pf.pack_nvfp4(codes.to(device), scale.to(device), multiplier.to(device))
    assert_means(weight, expected * multiplier.numpy()[:, None])


@pytest.mark.parametrize(
    ("k", "groups", "zeros", "name"),
    [
        (64, 2, False, "int4"),
        (64, 2, True, "int4_g32"),
        (128, 2, False, "int4_g64"),
        (256, 2, True, "int4_g128"),
        (768, 2, True, "int4_g128"),  # of 384
        (160, 1, False, "int4_g32"),  # a row each
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_groups_of_any_size(k, groups, zeros, name, dtype, device):
    generator = torch.Generator().manual_seed(k)
    n = 24
    words = torch.randint(-(2**31), 2**31, (n, k // 8), generator=generator).int()
    scale = torch.rand(n, groups, generator=generator)
    scale = (scale * 2.0 ** torch.randint(-20, 3, (n, 1), generator=generator)).to(dtype)
    stored = {"weight_packed": words, "weight_scale": scale, "weight_shape": torch.tensor([n, k])}
    if zeros:
        stored["weight_zero_point"] = torch.randint(
            -(2**31), 2**31, (n // 8, groups), generator=generator
        ).int()
    expected = dequantize("pack-quantized-int4", {key: array(t) for key, t in stored.items()})
    zero = stored["weight_zero_point"].to(device) if zeros else None
    weight = pf.pack_int4(words.to(device), scale.to(device), zero)
    assert weight.format == name
    if dtype == torch.bfloat16 or (dtype == torch.float16 and scale.min() >= 2**-14):
        assert_means(weight, expected)
    else:  # FP32's scales are rounded to FP16
        ours = packed.dequantize(weight).cpu().numpy()
        np.testing.assert_allclose(ours, expected, rtol=2**-10, atol=1e-9)


def test_order_of_groups(device):
    generator = torch.Generator().manual_seed(0)
    n, k = 8, 256
    words = torch.randint(-(2**31), 2**31, (n, k // 8), generator=generator).int()
    scale = torch.rand(n, 2, generator=generator).half()
    g_idx = (torch.randperm(k, generator=generator) // 128).int()
    stored = {
        "weight_packed": words, "weight_scale": scale, "weight_shape": torch.tensor([n, k]),
        "weight_g_idx": g_idx,
    }  # fmt: skip
    expected = dequantize("pack-quantized-int4", {key: array(t) for key, t in stored.items()})
    there = [t.to(device) for t in (words, scale, g_idx)]
    assert_means(pf.pack_int4(there[0], there[1], g_idx=there[2]), expected)
    g_idx[g_idx == 1] = 0
    with pytest.raises(ValueError, match="g_idx does not give each of 2 groups 128 of 256 columns"):
        pf.pack_int4(words, scale, g_idx=g_idx)


@pytest.mark.parametrize("n", [100, 256])
@pytest.mark.parametrize("k", [144, 384])
def test_fp8_blocks_that_are_cut(n, k, device):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 127, (n, k), generator=generator).to(torch.uint8)
    scale = torch.rand(-(-n // 128), -(-k // 128), generator=generator)
    expected = dequantize(
        "fp8-block", {"weight": codes.numpy(), "weight_scale_inv": scale.numpy()}, (128, 128)
    )
    weight = pf.pack_fp8(codes.view(torch.float8_e4m3fn).to(device), scale.to(device), (128, 128))
    assert_means(weight, expected)
    exponent = torch.randint(100, 130, scale.shape, generator=generator).to(torch.uint8)
    expected = dequantize(
        "fp8-block", {"weight": codes.numpy(), "weight_scale_inv": exponent.numpy()}, (128, 128)
    )
    powers = exponent.view(torch.float8_e8m0fnu).to(device)
    assert_means(pf.pack_fp8(codes.to(device), powers, (128, 128)), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack_gguf("Q3_K", torch.zeros(1, 110)), "GGUF's Q3_K is not packed, only Q4_0"),
        (
            lambda: pack_gguf("Q4_0", torch.zeros(2, 19, dtype=torch.uint8)),
            "rows is torch.uint8 [2, 19], needs torch.uint8 [N, bytes] with whole blocks of 18",
        ),
        (
            lambda: pf.pack_gptq(
                torch.zeros(16, 8).int(), torch.zeros(2, 2).int(), torch.ones(2, 8).half()
            ),
            "codes of 4 bits alone are packed, these have 8",
        ),
        (
            lambda: pf.pack_int4(torch.zeros(8, 6).int(), torch.ones(8, 3).half()),
            "48 columns in 3 groups: their size is to be a multiple of 32",
        ),
        (
            lambda: pf.pack_fp8(torch.zeros(4, 256, dtype=torch.uint8), torch.ones(1, 2)),
            "scale has shape [1, 2] for W [4, 256] without blocks",
        ),
        (
            lambda: pf.pack_fp8(torch.zeros(4, 256, dtype=torch.uint8), torch.ones(1, 4), (64, 64)),
            "needs [1, 4] and blocks of a multiple of 128 columns",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
