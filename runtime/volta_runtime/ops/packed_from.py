"""Matrices of safetensors checkpoints, packed: one function for each family of weight formats.

What the tensors hold is told in docs/formats.md. All of a matrix lie on one device; E4M3 and E8M0
come as their torch dtypes or as their bytes. Every function raises ValueError for what pack()
refuses and KernelsMissingError where there are no kernels for the device.
"""

import torch
from torch import Tensor

from volta_runtime.ops.packed import PackedWeight, RowOrder, pack

_GROUPS = (128, 64, 32)  # of int4 with zero points
_MIDDLE = 8  # of 4 bits: the zero point where there is none
_FP8_COLUMNS = 128


def pack_nvfp4(
    codes: Tensor, scale: Tensor, multiplier: Tensor, row_order: RowOrder = "plain"
) -> PackedWeight:
    """NVFP4: codes uint8 [N, K/2], scale E4M3 [N, K/16] or [N, K/32].

    multiplier: float32, of the matrix ([] or [1]) or of each row [N], as fused matrices have it:
    weight_scale_2 of ModelOpt, 1 / weight_global_scale of compressed-tensors.
    """
    scale = _bytes(scale)
    if scale.shape[-1] * 32 == codes.shape[-1] * 2:
        scale = scale.repeat_interleave(2, 1)
    row_scale = multiplier.float().expand(len(codes)).contiguous()
    return pack("nvfp4", nibbles(codes), scale, row_scale=row_scale, row_order=row_order)


def pack_fp4(
    codes: Tensor,
    scale: Tensor,
    multiplier: Tensor | None = None,
    block_rows: int = 1,
    row_order: RowOrder = "plain",
) -> PackedWeight:
    """The house forms: codes uint8 [N, K/2] and plain scales of 32 columns.

    scale: FP32, BF16 or FP16, [N / block_rows, rounded up, K/32]; multiplier as for NVFP4.
    """
    n = len(codes)
    if block_rows > 1:
        scale = scale.repeat_interleave(block_rows, 0)[:n].contiguous()
    if scale.dtype == torch.float16:
        scale = scale.float()
    row_scale = None if multiplier is None else multiplier.float().expand(n).contiguous()
    name = "fp4_bf16" if scale.dtype == torch.bfloat16 else "fp4_f32"
    return pack(name, nibbles(codes), scale, row_scale=row_scale, row_order=row_order)


def pack_mxfp4(codes: Tensor, scale: Tensor, row_order: RowOrder = "plain") -> PackedWeight:
    """MXFP4: codes uint8 [N, K/2], or gpt-oss's blocks [N, K/32, 16]; scale E8M0 [N, K/32]."""
    return pack("mxfp4", nibbles(codes.flatten(1)), _bytes(scale), row_order=row_order)


def pack_awq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, row_order: RowOrder = "plain"
) -> PackedWeight:
    """AWQ's GEMM packing: int32 qweight [K, N/8] and qzeros [K/G, N/8], scales [K/G, N]."""
    place = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], device=qweight.device)

    def columns(words: Tensor) -> Tensor:
        """[N, ..] of [.., N/8]: the words' nibbles are columns 0 2 4 6 1 3 5 7."""
        codes = nibbles(words)
        return codes.view(len(codes), -1, 8)[..., place].view(len(codes), -1).T.contiguous()

    return _pack_int4(columns(qweight), scales.T, columns(qzeros), None, row_order)


def pack_gptq(
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    g_idx: Tensor | None = None,
    v2: bool = False,
    row_order: RowOrder = "plain",
) -> PackedWeight:
    """GPTQ of 4 bits: int32 qweight [K/8, N] and qzeros [K/G, N/8], scales [K/G, N].

    g_idx: int32 [K], the group of each column. v2: zeros are stored as they are, not less one.
    Raises ValueError for codes of other bits, and for groups of unequal size.
    """
    if qzeros.shape[1] * 8 != scales.shape[1]:
        bits = 32 * qzeros.shape[1] / scales.shape[1]
        raise ValueError(f"codes of 4 bits alone are packed, these have {bits:g}")
    if not v2:  # the one was taken from whole words, and borrowed across their fields
        qzeros = qzeros + 0x11111111
    zero = nibbles(qzeros).T.contiguous()
    return _pack_int4(nibbles(qweight.T.contiguous()), scales.T, zero, g_idx, row_order)


def pack_int4(
    weight_packed: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor | None = None,
    g_idx: Tensor | None = None,
    row_order: RowOrder = "plain",
) -> PackedWeight:
    """INT4 of compressed-tensors: int32 weight_packed [N, K/8], weight_scale [N, K/G] or [N, 1].

    weight_zero_point: int32 [N/8, rounded up, K/G] or None. Fields of both are 8 above what they
    mean, so a code less its zero point is what they say.
    """
    n = len(weight_packed)
    zero = None
    if weight_zero_point is not None:
        zero = nibbles(weight_zero_point.T.contiguous())[:, :n].T.contiguous()
    scale = weight_scale.reshape(-1, weight_scale.shape[-1] if weight_scale.dim() else 1)
    return _pack_int4(nibbles(weight_packed), scale.expand(n, -1), zero, g_idx, row_order)


def pack_fp8(
    weight: Tensor,
    scale: Tensor,
    block: tuple[int, int] | None = None,
    row_order: RowOrder = "plain",
) -> PackedWeight:
    """FP8: weight E4M3 [N, K] and a scale that multiplies, weight_scale or weight_scale_inv.

    scale: floats or E8M0, of the tensor ([], [1] or [1, 1]), of rows ([N] or [N, 1]), or with block
    = (rows, columns) [N / rows, K / columns], both rounded up, columns a multiple of 128; ModelOpt
    keeps two more dimensions of one.
    """
    codes, n, k = _bytes(weight), *weight.shape
    scale = scale.float()
    if block is None or scale.numel() == 1:
        if scale.numel() not in (1, n):
            raise ValueError(f"scale has shape {list(scale.shape)} for W {[n, k]} without blocks")
        row_scale = scale.flatten().expand(n).contiguous()
        return pack("fp8", codes, row_scale=row_scale, row_order=row_order)
    rows, columns = block
    shape = (-(-n // rows), -(-k // columns))
    if scale.numel() != shape[0] * shape[1] or columns % _FP8_COLUMNS:
        raise ValueError(
            f"scale has shape {list(scale.shape)} for W {[n, k]} in blocks {list(block)}, needs "
            f"{list(shape)} and blocks of a multiple of {_FP8_COLUMNS} columns"
        )
    each = scale.view(shape).repeat_interleave(rows, 0)[:n]
    each = each.repeat_interleave(columns // _FP8_COLUMNS, 1)[:, : -(-k // _FP8_COLUMNS)]
    return pack("fp8_block", codes, each.contiguous(), row_order=row_order)


def nibbles(packed: Tensor) -> Tensor:
    """uint8 [.., 2n] codes of [.., n] bytes, or of words as the bytes that they are: low first."""
    packed = packed.view(torch.uint8)
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _pack_int4(
    codes: Tensor, scale: Tensor, zero: Tensor | None, g_idx: Tensor | None, row_order: RowOrder
) -> PackedWeight:
    """Codes [n, k], scale and zero [n, k/G], of any G that is a multiple of 32."""
    k, groups = codes.shape[1], scale.shape[1]
    size = k // groups
    fits = [group for group in _GROUPS if size % group == 0]
    if not fits or k % groups:
        raise ValueError(
            f"{k} columns in {groups} groups: their size is to be a multiple of {_GROUPS[-1]}"
        )
    perm = None if g_idx is None else _order(g_idx, groups)
    half, row_scale = _half(scale)
    arrays = [half.repeat_interleave(size // fits[0], 1)]
    name = "int4"
    if zero is not None or size != 32:
        name = f"int4_g{fits[0]}"
        if zero is None:
            zero = torch.full_like(half, _MIDDLE, dtype=torch.uint8)
        arrays.append(zero.repeat_interleave(size // fits[0], 1))
    return pack(name, codes, *arrays, row_scale=row_scale, perm=perm, row_order=row_order)


def _order(g_idx: Tensor, groups: int) -> Tensor | None:
    """The columns group by group, None where they lie so."""
    k = len(g_idx)
    perm = g_idx.argsort(stable=True)
    expected = torch.arange(k, device=g_idx.device) // (k // groups)
    if not torch.equal(g_idx[perm].long(), expected):
        raise ValueError(
            f"g_idx does not give each of {groups} groups {k // groups} of {k} columns"
        )
    return None if torch.equal(g_idx.long(), expected) else perm.int()


def _half(scale: Tensor) -> tuple[Tensor, Tensor | None]:
    """FP16 scales, and of other dtypes the powers of two [n] that rows are multiplied by.

    BF16 stays exact but for scales of less than 2^-30 of their row's largest; of FP32 the bits
    beyond FP16's are rounded.
    """
    if scale.dtype == torch.float16:
        return scale.contiguous(), None
    scale = scale.float()
    exponent = torch.frexp(scale.abs().amax(1)).exponent
    up = _power_of_two(15 - exponent)
    return (scale * up[:, None]).half(), _power_of_two(exponent - 15)


def _power_of_two(exponent: Tensor) -> Tensor:
    return (exponent.clamp(-126, 127) + 127 << 23).int().view(torch.float32)
