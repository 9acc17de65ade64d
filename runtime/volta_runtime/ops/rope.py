"""What happens to queries and keys between their projection and the attention."""

import torch
from torch import Tensor

from volta_runtime.ops.native import ACTIVATION, ALIGNMENT, check, launch, op, require_kernels

_MAX_HEAD_DIM = 512


@op(
    "qk_norm_rope(Tensor(a!) qkv, Tensor? q_weight, Tensor? k_weight, Tensor cos_sin, "
    "Tensor positions, int heads, int kv_heads, int head_dim, float eps, *, "
    "bool interleaved=False, float offset=0.0) -> ()",
    lambda *_args, **_options: None,
)
def qk_norm_rope(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    *,
    interleaved: bool = False,
    offset: float = 0.0,
) -> None:
    """Normalise and rotate the query and key heads of a fused projection in place.

    qkv: [tokens, (heads + 2 kv_heads) · head_dim] in the device's activation dtype, queries, keys
    and values; rows contiguous, any number of elements apart. q_weight, k_weight: [head_dim], of
    each head's RMSNorm (weight + offset), or None for no norm. cos_sin: float32 [max_positions,
    rotary_dim] as of rope_cache; the first rotary_dim elements of a head are rotated, in pairs (i,
    i + rotary_dim / 2), or (2i, 2i + 1) if interleaved. positions: int32 or int64 [tokens]; where
    one is not in the table, the rotated elements become NaN. head_dim and rotary_dim are even, at
    most 512. The arithmetic is float32, rounded once.
    Raises ValueError for anything else.
    """
    device = qkv.device
    require_kernels(device)
    activation = ACTIVATION[device.type]
    width = (heads + 2 * kv_heads) * head_dim
    if (
        not (heads >= 0 and kv_heads >= 0 and heads + kv_heads > 0)
        or not 0 < head_dim <= _MAX_HEAD_DIM
        or head_dim % 2
    ):
        raise ValueError(
            f"{heads} heads and {kv_heads} KV heads of {head_dim}: needs at least one head, of an "
            f"even number of elements up to {_MAX_HEAD_DIM}"
        )
    if (
        qkv.dtype != activation
        or qkv.dim() != 2
        or qkv.shape[1] != width
        or qkv.stride(1) != 1
        or qkv.stride(0) < width
        or (device.type == "cuda" and qkv.data_ptr() % ALIGNMENT)
    ):
        raise ValueError(
            f"qkv is {qkv.dtype} {list(qkv.shape)} on {device}, strides {list(qkv.stride())}, "
            f"address {qkv.data_ptr() % ALIGNMENT} past a multiple of {ALIGNMENT}; needs "
            f"{activation} [tokens, {width}] with contiguous rows that do not overlap"
        )
    if cos_sin.dim() != 2 or 0 in cos_sin.shape or cos_sin.shape[1] % 2:
        raise ValueError(f"cos_sin has shape {list(cos_sin.shape)}, needs [max_positions, even]")
    max_positions, rotary_dim = cos_sin.shape
    if rotary_dim > head_dim:
        raise ValueError(f"cos_sin rotates {rotary_dim} elements, but a head has {head_dim}")
    tokens = qkv.shape[0]
    index = torch.int32 if positions.dtype == torch.int32 else torch.int64
    check("cos_sin", cos_sin, device, torch.float32, cos_sin.shape)
    check("positions", positions, device, index, (tokens,))
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None:
            check(name, weight, device, activation, (head_dim,))
    if tokens:
        launch(
            "qk_norm_rope",
            device,
            qkv,
            q_weight,
            k_weight,
            cos_sin,
            positions,
            positions.element_size(),
            tokens,
            qkv.stride(0),
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            max_positions,
            interleaved,
            eps,
            offset,
        )
