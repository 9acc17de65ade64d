"""Matrices of GGUF files, packed: the fields of ggml's blocks become codes and scales.

docs/formats.md tells the blocks, checkpoint.formats.gguf their fields.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from volta_runtime.ops.packed import PackedWeight, RowOrder, pack
from volta_runtime.quant.gguf import layout

_TORCH = {"f2": torch.float16, "i1": torch.int8, "u1": torch.uint8}
_HIGHEST_UE4M3 = 0x7F  # stands for zero

# Of a type: the packed format, and its codes and arrays of scales, of [n, blocks, ...] fields.
Fields = dict[str, Tensor]
Packer = Callable[[Fields], tuple[Tensor, ...]]


def pack_gguf(
    kind: str, rows: Tensor, scale: Tensor | None = None, row_order: RowOrder = "plain"
) -> PackedWeight:
    """A matrix of a GGUF type, "Q4_K": rows uint8 [N, bytes of a row] as they lie in the file.

    scale: float32 [] or [1], which multiplies the matrix, where there is one beside it.
    Raises ValueError for a type that is not packed, for rows that are no whole blocks and for what
    pack() refuses, KernelsMissingError where there are no kernels for the device.
    """
    if kind not in PACKERS:
        raise ValueError(f"GGUF's {kind} is not packed, only {', '.join(PACKERS)}")
    block = layout(kind)
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] % block.itemsize:
        raise ValueError(
            f"rows is {rows.dtype} {list(rows.shape)}, needs torch.uint8 [N, bytes] with whole "
            f"blocks of {block.itemsize} bytes for {kind}"
        )
    n = len(rows)
    blocks = rows.view(n, -1, block.itemsize)
    fields = {}
    for name, (dtype, at, *_) in (block.fields or {}).items():
        element = dtype.base.str.lstrip("<|")
        fields[name] = blocks[..., at : at + dtype.itemsize].contiguous().view(_TORCH[element])
    format_, packer = PACKERS[kind]
    codes, *scales = (part.reshape(n, -1) for part in packer(fields))
    row_scale = None if scale is None else scale.float().expand(n).contiguous()
    return pack(format_, codes, *scales, row_scale=row_scale, row_order=row_order)


def _halves(bytes_: Tensor, length: int) -> Tensor:
    """Of each `length` bytes the low nibbles, then the high: [n, blocks, runs, 2, length]."""
    runs = bytes_.view(*bytes_.shape[:2], -1, length)
    return torch.stack((runs & 15, runs >> 4), 3)


def _layers(bytes_: Tensor, length: int, bits: int) -> Tensor:
    """Of each `length` bytes the lowest bits of all, then the next: [n, blocks, codes]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=bytes_.device)[:, None]
    runs = bytes_.view(*bytes_.shape[:2], -1, 1, length)
    return ((runs >> shifts) & ((1 << bits) - 1)).flatten(2)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 6 bits, of 12 bytes."""
    low, middle, rest = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = torch.cat((low & 63, (rest & 15) | (low >> 6 << 4)), -1)
    least = torch.cat((middle & 63, (rest >> 4) | (middle >> 6 << 4)), -1)
    return scale, least


def _q5_k(block: Fields) -> tuple[Tensor, ...]:
    codes = _halves(block["qs"], 32).flatten(2) | _layers(block["qh"], 32, 1) << 4
    return codes, block["d"], block["dmin"], *_six_bits(block["scales"])


def _q6_k(block: Fields) -> tuple[Tensor, ...]:
    codes = _halves(block["ql"], 64).flatten(2) | _layers(block["qh"], 32, 2) << 4
    return codes, block["d"], block["scales"]


def _nvfp4(block: Fields) -> tuple[Tensor, ...]:
    scale = block["d"] & 0x7F
    return _halves(block["qs"], 8), torch.where(scale == _HIGHEST_UE4M3, 0, scale)


PACKERS: dict[str, tuple[str, Packer]] = {
    "Q4_0": ("int4", lambda b: (_halves(b["qs"], 16), b["d"])),
    "Q4_1": ("q4_1", lambda b: (_halves(b["qs"], 16), b["d"], b["m"])),
    "Q8_0": ("q8_0", lambda b: (b["qs"], b["d"])),
    "Q4_K": (
        "q4_k",
        lambda b: (_halves(b["qs"], 32), b["d"], b["dmin"], *_six_bits(b["scales"])),
    ),
    "Q5_K": ("q5_k", _q5_k),
    "Q6_K": ("q6_k", _q6_k),
    "MXFP4": ("mxfp4", lambda b: (_halves(b["qs"], 16), b["e"])),
    "NVFP4": ("nvfp4", _nvfp4),
}
