"""Products with packed matrices on the CPU, and what follows a product wherever torch does it."""

import torch
from torch import Tensor

from volta_runtime.ops import native
from volta_runtime.ops.formats import FORMATS
from volta_runtime.ops.native import check
from volta_runtime.ops.packed import PackedWeight, in_order


def linear_cpu(
    x: Tensor, packed: PackedWeight, bias: Tensor | None, residual: Tensor | None, gated: bool
) -> Tensor:
    """Compute ops.linear.linear on the CPU; what linear checks is checked."""
    k, rows = packed.k, packed.rows
    if bias is not None:
        check("bias", bias, x.device, torch.float32, (packed.n,))
    if residual is not None:
        columns = packed.n // 2 if gated else packed.n
        check("residual", residual, x.device, torch.float32, (*x.shape[:-1], columns))
    if packed.perm is not None:
        x = x[..., packed.perm]
    y = x.new_empty(*x.shape[:-1], rows)
    if x.numel():
        px, pd, pr, py = (t.data_ptr() for t in (x, packed.data, packed.row_scale, y))
        native.kernels.linear_cpu(
            FORMATS[packed.format].number, px, pd, pr, py, x.numel() // k, rows, k,
            torch.get_num_threads(), native.isa(),
        )  # fmt: skip
    return epilogue(y, packed, bias, residual, gated)


def epilogue(
    y: Tensor, packed: PackedWeight, bias: Tensor | None, residual: Tensor | None, gated: bool
) -> Tensor:
    """Turn sums [..., packed.rows] into what ops.linear.linear gives, contiguous, in y's dtype."""
    if packed.row_order == "gate_up":
        y = in_order(y.movedim(-1, 0).contiguous(), packed.n).movedim(0, -1)
    if bias is not None:
        y = y + bias
    if gated:
        gate, up = y.chunk(2, -1)
        y = torch.nn.functional.silu(gate) * up
    if residual is not None:
        y = y + residual
    return y.contiguous()
