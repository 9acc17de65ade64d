"""Products with packed matrices: y = x Wᵀ, with what is done to y while it is at hand."""

import torch
from torch import Tensor

from volta_runtime.ops.linear_cpu import linear_cpu
from volta_runtime.ops.linear_cuda import linear_cuda
from volta_runtime.ops.native import ACTIVATION, check, op, require_kernels
from volta_runtime.ops.packed import PackedWeight, RowOrder, check_packed


def linear(
    x: Tensor,
    packed: PackedWeight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """Compute x Wᵀ [+ bias] [..., n] for x [..., k]: float32 on the CPU, float16 on CUDA.

    gated: W is [gate; up], packed as gate_up, and the result silu(gate) * up [..., n / 2]. bias:
    [n]. residual: of the result's shape, added last. x and residual are contiguous. On CUDA what is
    finite stays so: beyond FP16's range it becomes +-65504. Raises ValueError where anything does
    not fit.
    """
    if x.dim() == 0 or x.shape[-1] != packed.k:
        raise ValueError(
            f"x has shape {list(x.shape)}, needs [..., {packed.k}] for W [{packed.n}, {packed.k}]"
        )
    if torch.compiler.is_compiling():
        y: Tensor = torch.ops.volta.packed_linear(
            x, packed.data, packed.row_scale, packed.half_factor, packed.perm, packed.format,
            packed.n, packed.row_order, bias, residual, gated,
        )  # fmt: skip
        return y
    return _linear(x, packed, bias, residual, gated)  # packing has checked the rest


def _fake(
    x: Tensor, _data: Tensor, _row_scale: Tensor, _half_factor: Tensor, _perm: Tensor | None,
    _format: str, n: int, _row_order: str, _bias: Tensor | None, _residual: Tensor | None,
    gated: bool,
) -> Tensor:  # fmt: skip
    return x.new_empty(*x.shape[:-1], n // 2 if gated else n)


@op(
    "packed_linear(Tensor x, Tensor data, Tensor row_scale, Tensor half_factor, Tensor? perm, "
    "str format, int n, str row_order, Tensor? bias, Tensor? residual, bool gated) -> Tensor",
    _fake,
)
def _linear_op(
    x: Tensor, data: Tensor, row_scale: Tensor, half_factor: Tensor, perm: Tensor | None,
    format: str, n: int, row_order: RowOrder, bias: Tensor | None, residual: Tensor | None,  # noqa: A002
    gated: bool,
) -> Tensor:  # fmt: skip
    """What the dispatcher calls, with tensors of any origin."""
    require_kernels(data.device)
    k = x.shape[-1]
    packed = PackedWeight(format, data, row_scale, half_factor, n, k, perm, row_order)
    check_packed(packed)
    return _linear(x, packed, bias, residual, gated)


def _linear(
    x: Tensor, packed: PackedWeight, bias: Tensor | None, residual: Tensor | None, gated: bool
) -> Tensor:
    device = packed.device
    check("x", x, device, ACTIVATION[device.type], x.shape)
    if gated and packed.row_order != "gate_up":
        raise ValueError(f"gated needs W in gate_up order, it is in {packed.row_order} order")
    product = linear_cuda if device.type == "cuda" else linear_cpu
    return product(x, packed, bias, residual, gated)
