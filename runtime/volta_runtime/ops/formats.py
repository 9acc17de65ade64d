"""The weight formats of csrc/formats.h, as Python needs them: sizes, and what they are made of."""

import functools
from dataclasses import dataclass

import torch

from volta_runtime.ops import native

TILE_ROWS = 32


@dataclass(frozen=True)
class Format:
    """A weight format: a row of csrc/formats.h.

    chunk: columns of a tile. multiple: what K is a multiple of. scales: for each array of scales
    its dtype, and of how many columns an element is. largest: of the codes; -1 where a byte is one.
    """

    number: int
    name: str
    chunk: int
    tile_bytes: int
    multiple: int
    scales: tuple[tuple[torch.dtype, int], ...]
    largest: int

    def shape(self, n: int, k: int) -> tuple[int, int, int]:
        """Of the packed data of n rows."""
        return -(-n // TILE_ROWS), -(-k // self.chunk), self.tile_bytes


_U8, _I8, _F16, _F32 = torch.uint8, torch.int8, torch.float16, torch.float32
_K_QUANT = ((_F16, 256), (_F16, 256), (_U8, 32), (_U8, 32))

FORMATS = {
    row.name: row
    for row in (
        Format(0, "nvfp4", 128, 2304, 16, ((_U8, 16),), 15),
        Format(1, "mxfp4", 128, 2176, 32, ((_U8, 32),), 15),
        Format(2, "fp4_f32", 128, 2560, 32, ((_F32, 32),), 15),
        Format(3, "fp4_bf16", 128, 2304, 32, ((torch.bfloat16, 32),), 15),
        Format(4, "int4", 128, 2304, 32, ((_F16, 32),), 15),
        Format(5, "int4_g32", 128, 2560, 32, ((_F16, 32), (_U8, 32)), 15),
        Format(6, "int4_g64", 128, 2304, 64, ((_F16, 64), (_U8, 64)), 15),
        Format(7, "int4_g128", 128, 2176, 128, ((_F16, 128), (_U8, 128)), 15),
        Format(8, "q4_1", 128, 2560, 32, ((_F16, 32), (_F16, 32)), 15),
        Format(9, "q4_k", 256, 4608, 256, _K_QUANT, 15),
        Format(10, "q5_k", 256, 5632, 256, _K_QUANT, 31),
        Format(11, "q6_k", 256, 6720, 256, ((_F16, 256), (_I8, 16)), 63),
        Format(12, "q8_0", 128, 4352, 32, ((_F16, 32),), -1),
        Format(13, "fp8", 128, 4096, 16, (), -1),
        Format(14, "fp8_block", 128, 4224, 16, ((_F32, 128),), -1),
    )
}


@functools.cache
def compiled() -> dict[str, Format]:
    """FORMATS, held against the rows that the kernels were compiled with."""
    ours = tuple(
        (r.number, r.name, r.chunk, r.tile_bytes, r.multiple,
         tuple((dtype.itemsize, columns) for dtype, columns in r.scales))
        for r in FORMATS.values()
    )  # fmt: skip
    if ours != native.kernels.formats:
        different = [str(row) for row in native.kernels.formats if row not in ours]
        raise native.KernelsMissingError(
            "the compiled kernels are of another version, their weight formats differ: "
            f"{', '.join(different)}"
        )
    return FORMATS


def named(name: str) -> Format:
    """The format of this name. Raises ValueError where there is none."""
    if name not in compiled():
        raise ValueError(f"there is no weight format {name!r}, there are {', '.join(FORMATS)}")
    return FORMATS[name]
