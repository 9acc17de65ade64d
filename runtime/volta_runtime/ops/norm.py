"""RMSNorm over the last dimension, with the residual stream's addition in the same pass."""

import torch
from torch import Tensor

from volta_runtime.ops.native import ACTIVATION, check, launch, op, require_kernels


@op(
    "rms_norm(Tensor x, Tensor weight, float eps, Tensor(a!)? residual=None, *, "
    "float offset=0.0) -> Tensor",
    lambda x, *_args, **_options: torch.empty_like(x),
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    *,
    offset: float = 0.0,
) -> Tensor:
    """Compute y = s / sqrt(mean(s²) + eps) · (weight + offset), where s is x, or x + residual.

    x: [..., hidden] in the device's activation dtype. weight: [hidden], the same; Gemma's has
    offset 1. residual: as x, or float32 on CUDA too, for models whose residual stream outgrows
    float16; s replaces it, rounded to its dtype (in float16, finite values beyond ±65504 become
    that). The norm is taken of s in float32 before that rounding.
    Raises ValueError for anything else, and for memory that is not contiguous or, on CUDA, does
    not start at a multiple of 16 bytes.
    """
    device = x.device
    require_kernels(device)
    activation = ACTIVATION[device.type]
    if x.dim() == 0:
        raise ValueError("x is a scalar, needs [..., hidden]")
    hidden = x.shape[-1]
    check("x", x, device, activation, x.shape)
    check("weight", weight, device, activation, (hidden,))
    if residual is not None:
        wide = residual.dtype == torch.float32
        check("residual", residual, device, torch.float32 if wide else activation, x.shape)
    y = torch.empty_like(x)
    if x.numel():
        rows = x.numel() // hidden
        width = 0 if residual is None else residual.element_size()
        launch("rms_norm", device, x, residual, weight, y, rows, hidden, width, eps, offset)
    return y
