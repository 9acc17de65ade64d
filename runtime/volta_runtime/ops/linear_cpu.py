"""Products with packed matrices on the CPU."""

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
    n, k, rows = packed.n, packed.k, packed.rows
    if bias is not None:
        check("bias", bias, x.device, torch.float32, (n,))
    if packed.perm is not None:
        x = x[..., packed.perm]
    y = x.new_empty(*x.shape[:-1], rows)
    if x.numel():
        px, pd, pr, py = (t.data_ptr() for t in (x, packed.data, packed.row_scale, y))
        native.kernels.linear_cpu(
            FORMATS[packed.format].number, px, pd, pr, py, x.numel() // k, rows, k,
            torch.get_num_threads(), native.isa(),
        )  # fmt: skip
    if packed.row_order == "gate_up":
        y = in_order(y.movedim(-1, 0).contiguous(), n).movedim(0, -1)
    if bias is not None:
        y = y + bias
    if gated:
        gate, up = y.chunk(2, -1)
        y = torch.nn.functional.silu(gate) * up
    if residual is not None:
        check("residual", residual, x.device, torch.float32, tuple(y.shape))
        y = y + residual
    return y.contiguous()
