"""Quantisers and reference dequantisers in numpy, one file for each family of weight formats."""

from collections.abc import Callable, Mapping
from functools import partial

from volta_runtime.checkpoint.formats import BY_NAME
from volta_runtime.checkpoint.formats.gguf import ROWS as GGUF
from volta_runtime.quant import awq, fp8, gguf, gptq, integers, mxfp4, nvfp4
from volta_runtime.quant.floats import floats
from volta_runtime.quant.stored import F32, Array, Stored

__all__ = ["DEQUANTIZERS", "dequantize"]


def _plain(w: Stored) -> F32:
    return floats(w["weight"])


DEQUANTIZERS: dict[str, Callable[[Stored], F32]] = {
    "dense": _plain,
    "nvfp4-pack-quantized": nvfp4.dequantize,
    "modelopt-nvfp4": nvfp4.dequantize_modelopt,
    "modelopt-nvfp4-awq": nvfp4.dequantize_modelopt,
    "nvfp4-g16": nvfp4.dequantize_modelopt,
    "nvfp4-g32": nvfp4.dequantize_plain,
    "nvfp4-block": nvfp4.dequantize_block,
    "mxfp4-pack-quantized": mxfp4.dequantize,
    "mxfp4-blocks": mxfp4.dequantize_blocks,
    "fp8-tensor": fp8.dequantize,
    "fp8-channel": fp8.dequantize,
    "fp8-block": fp8.dequantize,
    "float-quantized": fp8.dequantize,
    "modelopt-fp8": fp8.dequantize,
    "mxfp8": fp8.dequantize_mx,
    "pack-quantized-int4": partial(integers.dequantize_packed, bits=4),
    "pack-quantized-int8": partial(integers.dequantize_packed, bits=8),
    "int-quantized": integers.dequantize_bytes,
    "awq": awq.dequantize,
    "gptq": gptq.dequantize,
    **{
        row.name: partial(gguf.dequantize, dtype=row.codes.dtypes[0]) if row.group else _plain
        for row in GGUF
    },
}


def dequantize(
    name: str,
    arrays: Mapping[str, Array],
    group: tuple[int, int] | None = None,
    gptq_v2: bool = False,
) -> F32:
    """The matrix [N, K], or [experts, N, K], that a layer in this format multiplies its inputs by.

    name: a row of checkpoint.formats. arrays: its parameters as they lie on disk, E4M3 and E8M0 as
    uint8, BF16 as uint16, GGUF's rows as bytes. group: (rows, columns) of a block, where they are
    not the format's own. gptq_v2: the config's checkpoint_format. Computed in FP32, in the order of
    the row's formula. Raises ValueError for a row that is refused.
    """
    row = BY_NAME[name]
    if row.refused:
        raise ValueError(f"{row.title} is not dequantised: {row.refused}")
    held = {
        parameter.name: arrays[found]
        for parameter in row.parameters
        for found in (parameter.name, *parameter.also)
        if found in arrays
    }
    block = group or (row.sizes.get("R", 1), row.sizes.get("C", 1))
    return DEQUANTIZERS[name](Stored(held, block, gptq_v2))
