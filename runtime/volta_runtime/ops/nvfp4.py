"""Products of the CPU engine, with NVFP4 in blocks of eight rows for AVX2, and with FP16."""

from dataclasses import dataclass

import torch
from torch import Tensor

from volta_runtime.ops import native
from volta_runtime.ops.native import check, op, require_kernels

_GROUP = 16  # weights that share an E4M3 scale
_ROW_BLOCK = 8
_NAN = 0x7F  # E4M3 without its sign

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class NVFP4Weight:
    """An NVFP4 matrix [n, k] packed for the CPU: W = e2m1(code) · e4m3(scale) · row_scale[n].

    codes: uint8 [n / 8, rounded up, k / 16, 64], in the order csrc/kernels.h gives.
    scales: uint8 [n / 8, rounded up, k / 16, 8], E4M3 bytes. row_scale: float32 [n].
    """

    codes: Tensor
    scales: Tensor
    row_scale: Tensor
    n: int
    k: int


def nvfp4_pack(codes: Tensor, block_scales: Tensor, row_scale: Tensor) -> NVFP4Weight:
    """Pack a matrix on the CPU.

    codes: uint8 [N, K/2], the low nibble is the even column. block_scales: float8_e4m3fn, or its
    bytes as uint8, [N, K/16]. row_scale: float32 [N], a multiplier. Any N; K a multiple of 16.
    Raises ValueError for other shapes, dtypes or devices and for a NaN scale, and
    KernelsMissingError when there are no kernels.
    """
    require_kernels(_CPU)
    if block_scales.dtype == torch.float8_e4m3fn:
        block_scales = block_scales.view(torch.uint8)
    if codes.dim() != 2 or codes.shape[0] == 0 or codes.shape[1] == 0 or codes.shape[1] % 8:
        raise ValueError(
            f"codes has shape {list(codes.shape)}, needs [N, K/2] with N > 0 and K a multiple of "
            f"{_GROUP}"
        )
    n, k = codes.shape[0], codes.shape[1] * 2
    check("codes", codes, _CPU, torch.uint8, (n, k // 2))
    check("block_scales", block_scales, _CPU, torch.uint8, (n, k // _GROUP))
    check("row_scale", row_scale, _CPU, torch.float32, (n,))
    nan = (block_scales & _NAN) == _NAN
    if nan.any():
        row, group = nan.nonzero()[0].tolist()
        raise ValueError(
            f"block_scales holds {int(nan.sum())} NaN of {nan.numel()}, the first in row {row}, "
            f"group {group}: the checkpoint is corrupt"
        )
    return NVFP4Weight(*_in_blocks(codes, block_scales), row_scale, n, k)


def nvfp4_linear(x: Tensor, w: NVFP4Weight) -> Tensor:
    """Compute x Wᵀ [..., n] in float32, for x float32 [..., k], contiguous and on the CPU.

    Raises ValueError for any other x.
    """
    if x.dim() == 0 or x.shape[-1] != w.k:
        raise ValueError(f"x has shape {list(x.shape)}, needs [..., {w.k}] for W [{w.n}, {w.k}]")
    if torch.compiler.is_compiling():
        y: Tensor = torch.ops.volta.nvfp4_linear(x, w.codes, w.scales, w.row_scale)
        return y
    # Eager calls skip the dispatcher and what packing has checked: both cost as much as a small
    # kernel.
    check("x", x, _CPU, torch.float32, x.shape)
    return _nvfp4_linear(x, w.codes, w.scales, w.row_scale)


def half_linear(x: Tensor, w: Tensor) -> Tensor:
    """Compute x Wᵀ [..., N] in float32, for x float32 [..., K] and w float16 [N, K], on the CPU.

    Both contiguous, K a multiple of 16. Raises ValueError otherwise.
    """
    if w.dim() != 2 or w.shape[0] == 0 or w.shape[1] == 0 or w.shape[1] % _GROUP:
        raise ValueError(
            f"w has shape {list(w.shape)}, needs [N, K] with N > 0 and K a multiple of {_GROUP}"
        )
    n, k = w.shape
    check("w", w, _CPU, torch.float16, (n, k))
    check("x", x, _CPU, torch.float32, (*x.shape[:-1], k))
    m = x.numel() // k
    y = x.new_empty(*x.shape[:-1], n)
    if m:
        px, pw, py = (t.data_ptr() for t in (x, w, y))
        native.kernels.half_linear_cpu(px, pw, py, m, n, k, torch.get_num_threads(), native.isa())
    return y


def _nvfp4_linear(x: Tensor, codes: Tensor, scales: Tensor, row_scale: Tensor) -> Tensor:
    n, k = row_scale.shape[0], x.shape[-1]
    m = x.numel() // k
    y = x.new_empty(*x.shape[:-1], n)
    if m:
        px, pc, ps, pr, py = (t.data_ptr() for t in (x, codes, scales, row_scale, y))
        native.kernels.nvfp4_linear_cpu(
            px, pc, ps, pr, py, m, n, k, torch.get_num_threads(), native.isa()
        )
    return y


def _in_blocks(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in blocks of eight, the bytes of a tile in the order csrc/kernels.h gives."""
    n, groups = scales.shape
    pad = -n % _ROW_BLOCK
    codes = torch.nn.functional.pad(codes, (0, 0, 0, pad))
    scales = torch.nn.functional.pad(scales, (0, 0, 0, pad))
    # [block, l, r, group, h, u] of byte pairs -> [block, group, h, l, u, r]
    pairs = codes.view(torch.int16).view(-1, 2, 4, groups, 2, 2).permute(0, 3, 4, 1, 5, 2)
    return (
        pairs.contiguous().view(torch.uint8).view(-1, groups, _ROW_BLOCK * _GROUP // 2),
        scales.view(-1, _ROW_BLOCK, groups).transpose(1, 2).contiguous(),
    )


def _nvfp4_linear_fake(x: Tensor, _codes: Tensor, _scales: Tensor, row_scale: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], row_scale.shape[0])


@op(
    "nvfp4_linear(Tensor x, Tensor codes, Tensor scales, Tensor row_scale) -> Tensor",
    _nvfp4_linear_fake,
)
def _nvfp4_linear_op(x: Tensor, codes: Tensor, scales: Tensor, row_scale: Tensor) -> Tensor:
    """What the dispatcher calls, with tensors of any origin."""
    require_kernels(_CPU)
    n, k = row_scale.shape[0], x.shape[-1]
    blocks, groups = -(-n // _ROW_BLOCK), k // _GROUP
    check("x", x, _CPU, torch.float32, x.shape)
    check("codes", codes, _CPU, torch.uint8, (blocks, groups, _ROW_BLOCK * _GROUP // 2))
    check("scales", scales, _CPU, torch.uint8, (blocks, groups, _ROW_BLOCK))
    check("row_scale", row_scale, _CPU, torch.float32, (n,))
    return _nvfp4_linear(x, codes, scales, row_scale)
