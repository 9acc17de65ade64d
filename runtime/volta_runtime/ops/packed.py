"""Matrices of few bits in the tiles that the kernels multiply by: made, had back, dequantised.

csrc/formats.h says what a tile is, csrc/sources.h what of. Every function works on the CPU and on
CUDA, wherever the tensors are.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from volta_runtime.ops import formats, native
from volta_runtime.ops.formats import TILE_ROWS, Format
from volta_runtime.ops.native import check, launch, require_kernels

RowOrder = Literal["plain", "gate_up"]

_SLAB = 1 << 24  # codes looked at in one go
_ARRAYS = 4  # of scales, as the kernels take them
_ALIGNMENT = 16  # bytes, of tiles on any device
_U8, _I8, _F32 = torch.uint8, torch.int8, torch.float32


@dataclass(frozen=True)
class PackedWeight:
    """A matrix W [n, k], packed.

    data: uint8 [tiles, chunks, bytes of a tile]; a tile has 32 rows. row_scale: float32
    [32 * tiles], by which rows are multiplied; 0 where a row is filling. half_factor: float32
    [32 * tiles], powers of two that bring the weights before row_scale into FP16's range:
    FP16 weights w * half_factor go with row_scale / half_factor. perm: int32 [k] or None; column j
    of the tiles is column perm[j] of W, and multiplies x[..., perm[j]]. row_order: "plain", or
    "gate_up": W is [gate; up], n / 2 rows each, and tiles of gate and of up alternate.
    """

    format: str
    data: Tensor
    row_scale: Tensor
    half_factor: Tensor
    n: int
    k: int
    perm: Tensor | None = None
    row_order: RowOrder = "plain"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        held = (self.data, self.row_scale, self.half_factor, self.perm)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    @property
    def rows(self) -> int:
        """Rows that the kernels compute: n, or those of whole pairs of tiles."""
        return self.n if self.row_order == "plain" else TILE_ROWS * self.data.shape[0]

    def to(self, device: torch.device | str) -> "PackedWeight":
        """The same matrix there."""
        return replace(
            self,
            data=self.data.to(device),
            row_scale=self.row_scale.to(device),
            half_factor=self.half_factor.to(device),
            perm=None if self.perm is None else self.perm.to(device),
        )


def pack(
    format: str,  # noqa: A002 - what it is called everywhere
    codes: Tensor,
    *scales: Tensor,
    row_scale: Tensor | None = None,
    perm: Tensor | None = None,
    row_order: RowOrder = "plain",
) -> PackedWeight:
    """Pack a matrix for the device it lies on.

    codes: uint8 [n, k], one a byte: E2M1 and E4M3 as their bits, unsigned numbers as they are; int8
    for q8_0. scales: the arrays that FORMATS tells, [n, k / columns, rounded up]; E4M3 and E8M0 as
    their bytes. row_scale: float32 [n], by which rows are multiplied besides. perm: int32 [k], the
    order of columns in which groups of scales follow each other; codes come in their own order.

    Raises ValueError for an unknown format, other shapes, dtypes or devices, and for numbers that
    the format does not have (NaN, infinities, codes of more bits); KernelsMissingError where there
    are no kernels for the device.

    Blocks of MXFP4 that lie 2^127 or more below their row's largest count as zero in products.
    """
    row = formats.named(format)
    device = codes.device
    require_kernels(device)
    if (
        codes.dim() != 2
        or codes.shape[0] < 1
        or codes.shape[1] < 1
        or codes.shape[1] % row.multiple
    ):
        raise ValueError(
            f"codes has shape {list(codes.shape)}, needs [n, k] with n > 0 and k a multiple of "
            f"{row.multiple} for {format}"
        )
    n, k = codes.shape
    check("codes", codes, device, _I8 if format == "q8_0" else _U8, (n, k))
    if len(scales) != len(row.scales):
        raise ValueError(f"{format} has {len(row.scales)} arrays of scales, {len(scales)} given")
    for i, (array, (dtype, columns)) in enumerate(zip(scales, row.scales, strict=True)):
        check(f"scales[{i}]", array, device, dtype, (n, -(-k // columns)))
    if row_scale is None:
        row_scale = torch.ones(n, dtype=_F32, device=device)
    check("row_scale", row_scale, device, _F32, (n,))
    if row_order == "gate_up" and n % 2:
        raise ValueError(f"n = {n} is odd: gate and up are not of the same size")
    _refuse_numbers(row, codes, scales, row_scale)
    if format == "mxfp4":
        below, largest = _below_largest(codes, scales[0])
        scales, row_scale = (below,), row_scale * largest
    if perm is not None:
        check("perm", perm, device, torch.int32, (k,))
        if not torch.equal(perm.sort().values, torch.arange(k, dtype=torch.int32, device=device)):
            raise ValueError(f"perm is no order of {k} columns")
        codes = codes[:, perm]
    if row_order == "gate_up":
        codes, row_scale = _interleaved(codes), _interleaved(row_scale)
        scales = tuple(_interleaved(array) for array in scales)

    if codes.data_ptr() % 4:  # as a file has them
        codes = codes.clone()
    rows = codes.shape[0]
    shape = row.shape(rows, k)
    data = torch.empty(shape, dtype=_U8, device=device)
    half_factor = torch.empty(shape[0] * TILE_ROWS, dtype=_F32, device=device)
    arrays = [*scales, *[None] * (_ARRAYS - len(scales))]
    launch("pack", device, row.number, codes, *arrays, data, rows, k)
    launch("half_factor", device, row.number, data, half_factor, rows, k)
    row_scale = torch.nn.functional.pad(row_scale, (0, shape[0] * TILE_ROWS - rows))
    return PackedWeight(format, data, row_scale, half_factor, n, k, perm, row_order)


def check_packed(w: PackedWeight, lead: tuple[int, ...] = ()) -> None:
    """Raise ValueError unless the tensors are of the shapes, dtypes and places that they need.

    lead: the dimensions before those of one matrix, where there are several.
    """
    n_tiles = -(-w.n // TILE_ROWS) if w.row_order == "plain" else 2 * -(-w.n // 2 // TILE_ROWS)
    row, device = formats.named(w.format), w.data.device
    check("data", w.data, device, _U8, (*lead, n_tiles, *row.shape(w.n, w.k)[1:]))
    check("row_scale", w.row_scale, device, _F32, (*lead, TILE_ROWS * n_tiles))
    check("half_factor", w.half_factor, device, _F32, (*lead, TILE_ROWS * n_tiles))
    if w.perm is not None:
        check("perm", w.perm, device, torch.int32, (w.k,))
    if w.k % row.multiple or w.data.data_ptr() % _ALIGNMENT:
        raise ValueError(
            f"W is {w.format} [{w.n}, {w.k}], its data {w.data.data_ptr() % _ALIGNMENT} past a "
            f"multiple of {_ALIGNMENT}: needs 0, and k a multiple of {row.multiple}"
        )


def unpack(packed: PackedWeight) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """The inverse of pack: codes, scales and row_scale, in the order of W's rows and columns.

    Of MXFP4, row_scale comes without its powers of two, which are the blocks', and blocks of zeros
    have no scale above their row's largest.
    """
    check_packed(packed)
    row = formats.named(packed.format)
    device, rows, k = packed.device, packed.rows, packed.k
    codes = torch.empty(rows, k, dtype=_I8 if packed.format == "q8_0" else _U8, device=device)
    scales = tuple(
        torch.zeros(rows, -(-k // columns), dtype=dtype, device=device)
        for dtype, columns in row.scales
    )
    arrays = [*scales, *[None] * (_ARRAYS - len(scales))]
    launch("unpack", device, row.number, packed.data, codes, *arrays, rows, k)
    row_scale = packed.row_scale[:rows]
    if packed.row_order == "gate_up":
        codes, row_scale = in_order(codes, packed.n), in_order(row_scale, packed.n)
        scales = tuple(in_order(array, packed.n) for array in scales)
    if packed.format == "mxfp4":
        exponent = torch.frexp(row_scale).exponent - 1
        scales = ((exponent[:, None] + 127 - scales[0].int()).clamp(min=0).to(_U8),)
        row_scale = torch.frexp(row_scale).mantissa * 2
    if packed.perm is not None:
        codes = codes[:, packed.perm.argsort()]
    return codes, scales, row_scale


def dequantize(packed: PackedWeight) -> Tensor:
    """W [n, k] in float32, in the order of its rows and columns.

    Exact to float32's rounding on the CPU; on CUDA each weight is rounded to FP16 before its row's
    scale.
    """
    check_packed(packed)
    device = packed.device
    w = torch.empty(packed.rows, packed.k, dtype=native.ACTIVATION[device.type], device=device)
    cpu = device.type == "cpu"
    factor = packed.row_scale if cpu else packed.half_factor
    launch(
        "dequantize", device, formats.named(packed.format).number, packed.data, factor, w, *w.shape
    )
    if not cpu:
        w = w.float() * (packed.row_scale / packed.half_factor)[: packed.rows, None]
    if packed.row_order == "gate_up":
        w = in_order(w, packed.n)
    return w if packed.perm is None else w[:, packed.perm.argsort()]


def in_order(tiles: Tensor, n: int) -> Tensor:
    """[gate; up], n rows, of rows in tiles that alternate."""
    rest = tiles.shape[1:]
    halves = tiles.view(-1, 2, TILE_ROWS, *rest).transpose(0, 1).reshape(2, -1, *rest)
    return halves[:, : n // 2].reshape(n, *rest)


def _interleaved(array: Tensor) -> Tensor:
    """The inverse of in_order: tiles of gate and of up in turn, filled up with zeros."""
    half, rest = array.shape[0] // 2, array.shape[1:]
    whole, left = divmod(half, TILE_ROWS)
    tiles = array.new_zeros(whole + (left > 0), 2, TILE_ROWS, *rest)
    halves, by_half = array.view(2, half, *rest), tiles.transpose(0, 1)
    by_half[:, :whole] = halves[:, : half - left].reshape(2, whole, TILE_ROWS, *rest)
    if left:
        by_half[:, whole, :left] = halves[:, half - left :]
    return tiles.view(-1, *rest)


def _refuse_numbers(
    row: Format, codes: Tensor, scales: tuple[Tensor, ...], row_scale: Tensor
) -> None:
    """Raise ValueError for numbers that the format does not have."""

    def refuse(wrong: Tensor, what: str, first_row: int = 0) -> None:
        if wrong.any():
            i, *rest = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{what}: {int(wrong.sum())} of {wrong.numel()}, the first at "
                f"{[first_row + i, *rest]}: the checkpoint is corrupt"
            )

    for i, array in enumerate([*scales, row_scale]):
        name = f"scales[{i}]" if i < len(scales) else "row_scale"
        if array.is_floating_point():
            refuse(~array.isfinite(), f"{name} is not finite")
    if row.name == "nvfp4":
        refuse(scales[0] & 0x7F == 0x7F, "scales[0] is NaN")
    if row.name == "mxfp4":
        refuse(scales[0] == 0xFF, "scales[0] is NaN")
    if row.name.startswith("int4_g"):
        refuse(scales[1] > 16, "scales[1], a zero point, is above 16")
    if row.name in ("q4_k", "q5_k"):
        for i in (2, 3):
            refuse(scales[i] > 63, f"scales[{i}] has more than 6 bits")
    step = max(1, _SLAB // codes.shape[1])
    for first in range(0, len(codes), step):
        part = codes[first : first + step]
        if row.name.startswith("fp8"):
            refuse(part & 0x7F == 0x7F, "codes is NaN", first)
        elif row.largest > 0:
            refuse(part > row.largest, f"codes is above {row.largest}", first)


def _below_largest(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Of E8M0 scales: how far each lies below its row's largest, and 2^largest, float32 [n].

    The largest is of the blocks that are not all zero; what lies above is a zero's.
    """
    blocks = codes.view(len(codes), -1, 32)
    used = (blocks & 7).amax(2) > 0
    largest = torch.where(used, scales, 0).amax(1)
    below = (largest[:, None].int() - scales).clamp(min=0).to(_U8)
    # 2^(b - 127) is the exponent's bits alone, but for 2^-127, which is a subnormal.
    bits = torch.where(largest > 0, largest.int() << 23, 1 << 22).to(torch.int32)
    return below, bits.view(_F32)
