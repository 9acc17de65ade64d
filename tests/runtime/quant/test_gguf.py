"""Blocks of any bytes, decoded as the gguf library does: bit for bit, for FP32 is used alike."""

import gguf
import numpy as np
import pytest

from volta_runtime.quant.gguf import _BLOCKS, dequantize
from volta_runtime.quant.stored import Stored

HALVES = ("d", "m", "dmin")


@pytest.mark.parametrize("dtype", _BLOCKS)
def test_any_block_is_the_librarys(dtype):
    random = np.random.default_rng()
    kind = gguf.GGMLQuantizationType[dtype]
    layout = np.dtype(_BLOCKS[dtype][0])
    rows = random.integers(0, 256, (64, 8 * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    blocks = rows.reshape(-1).view(layout)
    for name in HALVES:
        if name in layout.names and layout[name] == np.dtype("<f2"):
            blocks[name] = random.normal(scale=4, size=len(blocks)).astype("<f2")
    if dtype == "NVFP4":
        blocks["d"] %= 127  # UE4M3 without its NaN, of which the library makes something else
    if dtype == "MXFP4":
        blocks["e"] = random.integers(0, 253, len(blocks))  # above, FP32 overflows
    ours, theirs = dequantize(Stored({"weight": rows}), dtype), gguf.quants.dequantize(rows, kind)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)
