"""Blocks of any bytes, decoded as the gguf library does: bit for bit, for FP32 is used alike."""

import gguf
import numpy as np
import pytest

from volta_runtime.checkpoint.formats.gguf import ROWS
from volta_runtime.checkpoint.gguf import TYPES
from volta_runtime.quant import dequantize
from volta_runtime.quant.gguf import DECODERS, layout

HALVES = ("d", "m", "dmin")
BLOCKS = {row.codes.dtypes[0]: row for row in ROWS if row.block}


@pytest.mark.parametrize("dtype", BLOCKS)
def test_the_fields_fill_the_block(dtype):
    sizes = {name: size for name, _, size in TYPES.values()}
    assert layout(dtype).itemsize == sizes[dtype]


@pytest.mark.parametrize("dtype", DECODERS.keys() - {"Q1_0"})  # which the library does not decode
def test_any_block_is_the_librarys(dtype):
    random = np.random.default_rng()
    kind = gguf.GGMLQuantizationType[dtype]
    rows = random.integers(0, 256, (64, 8 * layout(dtype).itemsize), np.uint8)
    blocks = rows.reshape(-1).view(layout(dtype))
    for name in HALVES:
        if name in layout(dtype).names and layout(dtype)[name] == np.dtype("<f2"):
            blocks[name] = random.normal(scale=4, size=len(blocks)).astype("<f2")
    if dtype == "NVFP4":
        blocks["d"] %= 128
    if dtype == "MXFP4":
        blocks["e"] = random.integers(0, 253, len(blocks))  # above, FP32 overflows
    ours = dequantize(f"gguf-{dtype.lower()}", {"weight": rows})
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, gguf.quants.dequantize(rows, kind))


def test_bits_are_signs():
    row = np.float16([0.5]).tobytes() + bytes([0b101]) + bytes(15)
    ours = dequantize("gguf-q1_0", {"weight": np.frombuffer(row, np.uint8)[None]})
    assert ours[0, :4].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert ours.shape == (1, 128)


def test_each_expert_has_its_scale():
    rows = np.random.default_rng(0).integers(0, 127, (2, 3, 36), np.uint8)
    plain = dequantize("gguf-nvfp4", {"weight": rows})
    ours = dequantize("gguf-nvfp4", {"weight": rows, "scale": np.float32([2, 0.5])})
    np.testing.assert_array_equal(ours, plain * np.float32([2, 0.5])[:, None, None])
