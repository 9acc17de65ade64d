"""NVFP4 matrices of the CPU engine, packed in blocks of eight rows for AVX2."""

from dataclasses import dataclass

import torch
from torch import Tensor

from volta_runtime.ops import native
from volta_runtime.ops.native import ACTIVATION, check, op, require_kernels

_GROUP = 16  # weights that share an E4M3 scale
_GEMV_MAX_M = 8  # rows of x up to which CUDA's GEMV is taken, above it dequantise + matmul
_ROW_BLOCK = 8  # rows per block of the CPU layout
_NAN = 0x7F  # E4M3 without its sign

_SLAB_BYTES = 64 << 20  # of FP16 weights at most at a time: modest beside a model


@dataclass(frozen=True)
class NVFP4Weight:
    """An NVFP4 matrix [n, k] packed for one device: W = e2m1(code) · e4m3(scale) · row_scale[n].

    codes: uint8, 4 bits a weight, in the order of the device's kernels (padded).
    scales: uint8, one E4M3 byte per 16 weights of a row, padded alike.
    row_scale: float32 [n].
    """

    codes: Tensor
    scales: Tensor
    row_scale: Tensor
    n: int
    k: int


def nvfp4_pack(codes: Tensor, block_scales: Tensor, row_scale: Tensor) -> NVFP4Weight:
    """Pack a matrix for the device it lies on.

    codes: uint8 [N, K/2], the low nibble is the even column. block_scales: float8_e4m3fn, or its
    bytes as uint8, [N, K/16]. row_scale: float32 [N], a multiplier. Any N; K a multiple of 16.
    Raises ValueError for other shapes, dtypes or devices and for a NaN scale, and
    KernelsMissingError when there are no kernels for the device.
    """
    require_kernels(codes.device)
    if block_scales.dtype == torch.float8_e4m3fn:
        block_scales = block_scales.view(torch.uint8)
    if codes.dim() != 2 or codes.shape[0] == 0 or codes.shape[1] == 0 or codes.shape[1] % 8:
        raise ValueError(
            f"codes has shape {list(codes.shape)}, needs [N, K/2] with N > 0 and K a multiple of "
            f"{_GROUP}"
        )
    n, k = codes.shape[0], codes.shape[1] * 2
    check("codes", codes, codes.device, torch.uint8, (n, k // 2))
    check("block_scales", block_scales, codes.device, torch.uint8, (n, k // _GROUP))
    check("row_scale", row_scale, codes.device, torch.float32, (n,))
    nan = (block_scales & _NAN) == _NAN
    if nan.any():
        row, group = nan.nonzero()[0].tolist()
        raise ValueError(
            f"block_scales holds {int(nan.sum())} NaN of {nan.numel()}, the first in row {row}, "
            f"group {group}: the checkpoint is corrupt"
        )
    to_device = _to_cpu_layout if codes.device.type == "cpu" else _to_cuda_layout
    return NVFP4Weight(*to_device(codes, block_scales), row_scale, n, k)


def nvfp4_unpack(w: NVFP4Weight) -> tuple[Tensor, Tensor]:
    """The exact inverse of nvfp4_pack: codes uint8 [n, k/2] and block scales uint8 [n, k/16]."""
    if w.codes.device.type == "cpu":
        return _from_cpu_layout(w)
    return (
        w.codes[:, : w.k // 2].contiguous(),
        w.scales[:, : w.k // _GROUP].contiguous(),
    )


def nvfp4_dequantize(w: NVFP4Weight, dtype: torch.dtype) -> Tensor:
    """W [n, k] in the device's own dtype: float32 on the CPU, float16 on CUDA.

    Raises ValueError for another dtype.
    """
    native = ACTIVATION[w.codes.device.type]
    if dtype != native:
        raise ValueError(
            f"nvfp4_dequantize gives {native} on {w.codes.device.type}, not {dtype}: convert it"
        )
    out = torch.empty(w.n, w.k, dtype=dtype, device=w.codes.device)
    _dequantize_rows(w.codes, w.scales, w.row_scale, out)
    return out


def nvfp4_linear(x: Tensor, w: NVFP4Weight) -> Tensor:
    """Compute x Wᵀ [..., n] for x [..., k], both float32 on the CPU and float16 on CUDA.

    x must be contiguous, on w's device and, on CUDA, start at a multiple of 16 bytes.
    Raises ValueError otherwise.
    """
    if x.dim() == 0 or x.shape[-1] != w.k:
        raise ValueError(f"x has shape {list(x.shape)}, needs [..., {w.k}] for W [{w.n}, {w.k}]")
    if torch.compiler.is_compiling():
        y: Tensor = torch.ops.volta.nvfp4_linear(x, w.codes, w.scales, w.row_scale)
        return y
    # Eager calls skip the dispatcher and what packing has checked: both cost as much as a small
    # kernel.
    device = w.codes.device
    check("x", x, device, ACTIVATION[device.type], x.shape)
    return _nvfp4_linear(x, w.codes, w.scales, w.row_scale)


def half_linear(x: Tensor, w: Tensor) -> Tensor:
    """Compute x Wᵀ on the CPU for x float32 [..., K] and w float16 [N, K], in float32.

    Both contiguous, K a multiple of 16. Raises ValueError otherwise.
    """
    if w.dim() != 2 or w.shape[0] == 0 or w.shape[1] == 0 or w.shape[1] % _GROUP:
        raise ValueError(
            f"w has shape {list(w.shape)}, needs [N, K] with N > 0 and K a multiple of {_GROUP}"
        )
    n, k = w.shape
    cpu = torch.device("cpu")
    check("w", w, cpu, torch.float16, (n, k))
    check("x", x, cpu, torch.float32, (*x.shape[:-1], k))
    m = x.numel() // k
    y = x.new_empty(*x.shape[:-1], n)
    if m:
        px, pw, py = (t.data_ptr() for t in (x, w, y))
        native.kernels.half_linear_cpu(px, pw, py, m, n, k, torch.get_num_threads(), native.isa())
    return y


def _nvfp4_linear(x: Tensor, codes: Tensor, scales: Tensor, row_scale: Tensor) -> Tensor:
    device, n, k = x.device, row_scale.shape[0], x.shape[-1]
    m = x.numel() // k
    y = x.new_empty(*x.shape[:-1], n)
    if m == 0:
        return y
    px, pc, ps, pr, py = (t.data_ptr() for t in (x, codes, scales, row_scale, y))
    if device.type == "cpu":
        native.kernels.nvfp4_linear_cpu(
            px, pc, ps, pr, py, m, n, k, torch.get_num_threads(), native.isa()
        )
    elif m <= _GEMV_MAX_M:
        with torch.cuda.device(device):
            native.kernels.nvfp4_gemv_cuda(px, pc, ps, pr, py, m, n, k, native.stream(device))
    else:
        _dequantize_and_matmul(x.view(m, k), codes, scales, row_scale, y.view(m, n))
    return y


def _dequantize_and_matmul(
    x: Tensor, codes: Tensor, scales: Tensor, row_scale: Tensor, y: Tensor
) -> None:
    """Compute y [m, n] on CUDA with only a slab of W's rows dequantised at a time."""
    n, k = y.shape[1], x.shape[1]
    slab = min(n, max(1, _SLAB_BYTES // (k * x.element_size())))
    weights = x.new_empty(slab, k)
    for start in range(0, n, slab):
        rows = slice(start, min(start + slab, n))
        part = weights[: rows.stop - rows.start]
        _dequantize_rows(codes[rows], scales[rows], row_scale[rows], part)
        torch.mm(x, part.T, out=y[:, rows])


def _dequantize_rows(codes: Tensor, scales: Tensor, row_scale: Tensor, out: Tensor) -> None:
    """Write all rows of a packed matrix to out [n, k]."""
    pc, ps, pr, po = (t.data_ptr() for t in (codes, scales, row_scale, out))
    n, k = out.shape
    if out.device.type == "cpu":
        native.kernels.nvfp4_dequantize_cpu(pc, ps, pr, po, n, k, torch.get_num_threads())
    else:
        with torch.cuda.device(out.device):
            native.kernels.nvfp4_dequantize_cuda(pc, ps, pr, po, n, k, native.stream(out.device))


def _packed_shapes(device: torch.device, n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of codes and scales as packed for the device."""
    if device.type == "cpu":
        blocks, groups = -(-n // _ROW_BLOCK), k // _GROUP
        return (blocks, groups, _ROW_BLOCK * _GROUP // 2), (blocks, groups, _ROW_BLOCK)
    groups = -(-k // 32) * 2  # a lane's 16 bytes of codes hold two groups
    return (n, groups * _GROUP // 2), (n, groups)


def _to_cpu_layout(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
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


def _from_cpu_layout(w: NVFP4Weight) -> tuple[Tensor, Tensor]:
    groups = w.k // _GROUP
    pairs = w.codes.view(torch.int16).view(-1, groups, 2, 2, 2, 4).permute(0, 3, 5, 1, 2, 4)
    codes = pairs.contiguous().view(torch.uint8).view(-1, w.k // 2)
    scales = w.scales.transpose(1, 2).reshape(-1, groups)
    return codes[: w.n].contiguous(), scales[: w.n].contiguous()


def _to_cuda_layout(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as they are, padded to whole 16-byte loads of codes."""
    pad = scales.shape[1] % 2
    return (
        torch.nn.functional.pad(codes, (0, pad * _GROUP // 2)).contiguous(),
        torch.nn.functional.pad(scales, (0, pad)).contiguous(),
    )


def _nvfp4_linear_fake(x: Tensor, _codes: Tensor, _scales: Tensor, row_scale: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], row_scale.shape[0])


@op(
    "nvfp4_linear(Tensor x, Tensor codes, Tensor scales, Tensor row_scale) -> Tensor",
    _nvfp4_linear_fake,
)
def _nvfp4_linear_op(x: Tensor, codes: Tensor, scales: Tensor, row_scale: Tensor) -> Tensor:
    """What the dispatcher calls, with tensors of any origin."""
    device = x.device
    require_kernels(device)
    codes_shape, scales_shape = _packed_shapes(device, row_scale.shape[0], x.shape[-1])
    check("x", x, device, ACTIVATION[device.type], x.shape)
    check("codes", codes, device, torch.uint8, codes_shape)
    check("scales", scales, device, torch.uint8, scales_shape)
    check("row_scale", row_scale, device, torch.float32, (row_scale.shape[0],))
    return _nvfp4_linear(x, codes, scales, row_scale)
