"""Mixture of experts: choosing experts, sorting by them, and summing what they gave.

Assignment token · top_k + slot is a token's slot-th expert. A rank of an expert-parallel group owns
the experts from first_expert on, local_experts of them, and skips all others.
"""

import torch
from torch import Tensor

from volta_runtime.ops.native import ACTIVATION, check, launch, op, require_kernels

_SCORINGS = ("softmax", "sigmoid")  # by their numbers in csrc/moe.h, as are the limits here
_MAX_EXPERTS = 512
_MAX_TOP_K = 32
_MAX_GROUPS = 32
_MAX_TILE = 128
_CHUNK = 4096  # assignments that one block sorts


def _moe_route_fake(
    logits: Tensor,
    top_k: int,
    *,
    renormalize: bool,  # noqa: ARG001 - the schema's names
    scoring: str = "softmax",  # noqa: ARG001
    bias: Tensor | None = None,  # noqa: ARG001
    groups: int = 0,  # noqa: ARG001
    top_groups: int = 0,  # noqa: ARG001
    scale: float = 1.0,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], top_k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


@op(
    "moe_route(Tensor logits, int top_k, *, bool renormalize, str scoring='softmax', "
    "Tensor? bias=None, int groups=0, int top_groups=0, float scale=1.0) -> (Tensor, Tensor)",
    _moe_route_fake,
)
def moe_route(
    logits: Tensor,
    top_k: int,
    *,
    renormalize: bool,
    scoring: str = "softmax",
    bias: Tensor | None = None,
    groups: int = 0,
    top_groups: int = 0,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Choose each token's experts: weights float32 and experts int32, both [tokens, top_k].

    logits: float32 or float16 [tokens, n_experts], up to 512 experts; top_k up to 32. The best
    expert comes first, of equal ones the lower, and a NaN last.
    scoring: a score is the "softmax" of the logits (Mixtral, Qwen3-MoE, gpt-oss) or each one's
    "sigmoid" (DeepSeek-V3, GLM-4.5). A weight is its expert's score times scale, divided by the sum
    of the token's chosen scores if renormalize: with softmax the same as a softmax of the top k.
    bias: float32 [n_experts], added to the scores for choosing alone.
    groups, top_groups: only experts of top_groups among so many equal groups (32 at most, of two
    experts or more) are chosen, those whose two best scores with bias have the largest sums.
    Raises ValueError for anything else, and for memory that is not contiguous or, on CUDA, does not
    start at a multiple of 16 bytes.
    """
    device = logits.device
    require_kernels(device)
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= _MAX_EXPERTS:
        raise ValueError(
            f"logits has shape {list(logits.shape)}, needs [tokens, n_experts] with 1 to "
            f"{_MAX_EXPERTS} experts"
        )
    tokens, n_experts = logits.shape
    half = logits.dtype == torch.float16
    check("logits", logits, device, torch.float16 if half else torch.float32, logits.shape)
    if bias is not None:
        check("bias", bias, device, torch.float32, (n_experts,))
    if scoring not in _SCORINGS:
        raise ValueError(f"scoring is {scoring!r}, needs one of {', '.join(_SCORINGS)}")
    if not 1 <= top_k <= min(_MAX_TOP_K, n_experts):
        raise ValueError(
            f"top_k is {top_k} of {n_experts} experts, needs 1 to {min(_MAX_TOP_K, n_experts)}"
        )
    _check_groups(n_experts, top_k, groups, top_groups)
    weights, experts = _moe_route_fake(logits, top_k, renormalize=renormalize)
    if tokens:
        how = (_SCORINGS.index(scoring), int(renormalize), groups, top_groups, scale)
        sizes = (tokens, n_experts, top_k)
        launch("moe_route", device, logits, int(half), bias, weights, experts, *sizes, *how)
    return weights, experts


def _moe_permute_fake(
    experts: Tensor,
    n_experts: int,
    tile: int,
    *,
    first_expert: int = 0,
    local_experts: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = n_experts - first_expert if local_experts is None else local_experts
    assignments = experts.shape[0] * experts.shape[1]
    # Whole tiles are at most assignments // tile, and each expert has at most one that is not.
    tiles = assignments // tile + min(assignments, count)
    sorted_, offsets, tile_expert, tile_row = (
        experts.new_empty(n) for n in (assignments, count + 1, tiles, tiles)
    )
    return sorted_, offsets, tile_expert, tile_row


@op(
    "moe_permute(Tensor experts, int n_experts, int tile, *, int first_expert=0, "
    "int? local_experts=None) -> (Tensor, Tensor, Tensor, Tensor)",
    _moe_permute_fake,
)
def moe_permute(
    experts: Tensor,
    n_experts: int,
    tile: int,
    *,
    first_expert: int = 0,
    local_experts: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort assignments by expert and cut each expert's into tiles, for a grouped product.

    experts: int32 [tokens, top_k], below n_experts (others are skipped). tile: rows, 1 to 128.
    local_experts: all from first_expert on if None.
    Returns four int32 tensors, whose sizes follow from shapes alone:
    sorted_assignments [tokens · top_k]: by expert, then by number; -1 after the last local one.
    expert_offsets [local_experts + 1]: the place of each local expert's first, and their number.
    tile_expert [tiles]: the tile's expert, counted from first_expert; -1 for unused tiles, which
    are the last ones. tiles is tokens · top_k // tile + min(tokens · top_k, local_experts).
    tile_row [tiles]: the place of the tile's first assignment, or -1. A tile has `tile` places, or
    fewer at its expert's end.
    Raises ValueError for anything else.
    """
    device = experts.device
    require_kernels(device)
    if experts.dim() != 2:
        raise ValueError(f"experts has shape {list(experts.shape)}, needs [tokens, top_k]")
    check("experts", experts, device, torch.int32, experts.shape)
    if not 1 <= tile <= _MAX_TILE:
        raise ValueError(f"tile is {tile}, needs 1 to {_MAX_TILE}")
    count = n_experts - first_expert if local_experts is None else local_experts
    _check_share(first_expert, count, n_experts)
    sorted_, offsets, tile_expert, tile_row = _moe_permute_fake(
        experts, n_experts, tile, first_expert=first_expert, local_experts=count
    )
    assignments = sorted_.shape[0]
    workspace = None
    if device.type == "cuda" and assignments > _CHUNK:
        workspace = experts.new_empty(-(-assignments // _CHUNK), count)
    out = (sorted_, offsets, tile_expert, tile_row, workspace)
    sizes = (assignments, first_expert, count, tile, tile_row.shape[0])
    launch("moe_permute", device, experts, *out, *sizes)
    return sorted_, offsets, tile_expert, tile_row


def _moe_combine_fake(
    y: Tensor,
    weights: Tensor,  # noqa: ARG001 - the schema's names
    experts: Tensor,
    *,
    first_expert: int,  # noqa: ARG001
    local_experts: int,  # noqa: ARG001
    shared: Tensor | None = None,  # noqa: ARG001
) -> Tensor:
    return y.new_empty(experts.shape[0], y.shape[1])


@op(
    "moe_combine(Tensor y, Tensor weights, Tensor experts, *, int first_expert, "
    "int local_experts, Tensor? shared=None) -> Tensor",
    _moe_combine_fake,
)
def moe_combine(
    y: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    first_expert: int,
    local_experts: int,
    shared: Tensor | None = None,
) -> Tensor:
    """Compute out [tokens, hidden] = sum over local slots of weight · y, + shared if given.

    y: [tokens · top_k, hidden] in the order of assignments, the device's activation dtype; rows of
    experts of other ranks are not read. weights: float32, experts: int32, both [tokens, top_k].
    shared: [tokens, hidden], as y. Sums are float32, rounded once; in float16, finite sums beyond
    ±65504 become that.
    Raises ValueError for anything else.
    """
    device = y.device
    require_kernels(device)
    if experts.dim() != 2 or not 1 <= experts.shape[1] <= _MAX_TOP_K:
        raise ValueError(
            f"experts has shape {list(experts.shape)}, needs [tokens, top_k] with top_k 1 to "
            f"{_MAX_TOP_K}"
        )
    if y.dim() != 2 or y.shape[1] == 0:
        raise ValueError(f"y has shape {list(y.shape)}, needs [tokens * top_k, hidden]")
    tokens, top_k = experts.shape
    hidden = y.shape[1]
    activation = ACTIVATION[device.type]
    check("y", y, device, activation, (tokens * top_k, hidden))
    check("weights", weights, device, torch.float32, (tokens, top_k))
    check("experts", experts, device, torch.int32, (tokens, top_k))
    if shared is not None:
        check("shared", shared, device, activation, (tokens, hidden))
    _check_share(first_expert, local_experts, _MAX_EXPERTS)
    out = y.new_empty(tokens, hidden)
    if tokens:
        sizes = (tokens, top_k, hidden, first_expert, local_experts)
        launch("moe_combine", device, y, weights, experts, shared, out, *sizes)
    return out


def _check_groups(n_experts: int, top_k: int, groups: int, top_groups: int) -> None:
    if groups == top_groups == 0:
        return
    if (
        1 <= top_groups <= groups <= _MAX_GROUPS
        and n_experts % groups == 0
        and n_experts // groups >= 2
        and n_experts // groups * top_groups >= top_k
    ):
        return
    raise ValueError(
        f"{top_groups} of {groups} groups of {n_experts} experts for top_k {top_k}: needs up to "
        f"{_MAX_GROUPS} equal groups of two experts or more, with top_k experts in the chosen ones"
    )


def _check_share(first: int, count: int, n_experts: int) -> None:
    """Raise ValueError unless the local experts lie within all, and these within the limit."""
    if 0 <= first < first + count <= n_experts <= _MAX_EXPERTS:
        return
    raise ValueError(
        f"{count} local experts from {first} on, of {n_experts}: needs one or more, within all "
        f"and within {_MAX_EXPERTS}"
    )
