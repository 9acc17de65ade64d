"""Products of a mixture of experts: each assignment's row of x meets its own expert's matrix."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from volta_runtime.ops import linear_cuda
from volta_runtime.ops.linear_cpu import linear_cpu
from volta_runtime.ops.native import ACTIVATION, check, op, require_kernels
from volta_runtime.ops.packed import PackedWeight, RowOrder, check_packed

_MAX_GRID = 65535  # tiles that a launch takes


@dataclass(frozen=True)
class PackedExperts:
    """Matrices [n, k] of one format, one for each expert of the rank: PackedWeight's, stacked.

    data: uint8 [experts, tiles, chunks, bytes of a tile]. row_scale, half_factor: float32
    [experts, 32 * tiles].
    """

    format: str
    data: Tensor
    row_scale: Tensor
    half_factor: Tensor
    n: int
    k: int
    row_order: RowOrder = "plain"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return self.data.nbytes + self.row_scale.nbytes + self.half_factor.nbytes

    def to(self, device: torch.device | str) -> "PackedExperts":
        """The same matrices there."""
        return replace(
            self,
            data=self.data.to(device),
            row_scale=self.row_scale.to(device),
            half_factor=self.half_factor.to(device),
        )

    def expert(self, i: int) -> PackedWeight:
        """One expert's matrix, a view."""
        return PackedWeight(
            self.format, self.data[i], self.row_scale[i], self.half_factor[i], self.n, self.k,
            row_order=self.row_order,
        )  # fmt: skip


def stack_experts(weights: Iterable[PackedWeight], experts: int) -> PackedExperts:
    """Stack so many experts' matrices, which are asked for one at a time and not kept.

    Raises ValueError where their number, formats, sizes, orders of rows or devices differ, and for
    an order of columns, of which each expert would need its own x.
    """
    stacked, count = None, 0
    for w in weights:
        if count == experts:
            raise ValueError(f"there are more than {experts} experts")
        check_packed(w)
        if w.perm is not None:
            raise ValueError(f"expert {count} has an order of its {w.k} columns, needs none")
        if stacked is None:
            stacked = _room(w, experts)
        if _kind(w) != _kind(stacked):
            raise ValueError(f"expert {count} is {_kind(w)}, those before it are {_kind(stacked)}")
        stacked.data[count] = w.data
        stacked.row_scale[count] = w.row_scale
        stacked.half_factor[count] = w.half_factor
        count += 1
        del w  # before the next is made
    if stacked is None or count < experts:
        raise ValueError(f"there are {count} experts, needs {experts}, one or more")
    return stacked


def _room(like: PackedWeight, experts: int) -> PackedExperts:
    arrays = (like.data, like.row_scale, like.half_factor)
    data, row_scale, half_factor = (t.new_empty(experts, *t.shape) for t in arrays)
    return PackedExperts(like.format, data, row_scale, half_factor, like.n, like.k, like.row_order)


def _kind(w: PackedWeight | PackedExperts) -> str:
    return f"{w.format} [{w.n}, {w.k}] in {w.row_order} order on {w.device}"


class Routes(NamedTuple):
    """What moe_permute returned, and the rows of a tile that it was given: 1, 2, 8, 16 or 32.

    Routes(*moe_permute(experts, n_experts, tile), tile), all int32 but the tile.
    """

    sorted_assignments: Tensor
    expert_offsets: Tensor
    tile_expert: Tensor
    tile_row: Tensor
    tile: int


def route_tile(assignments: int, experts: int) -> int:
    """Rows of a tile for so many assignments (tokens · top_k) to so many experts of all ranks.

    The least with room for twice an expert's mean, as experts are not chosen equally often, or 32:
    each tile reads its expert's matrix once more, so that a prefill of thousands of tokens, of
    which experts have many tiles, is bound by that.
    """
    return next(
        (tile for tile in linear_cuda.KERNEL_ROWS if 2 * assignments <= tile * experts),
        linear_cuda.KERNEL_ROWS[-1],
    )


def expert_linear(
    x: Tensor,
    experts: PackedExperts,
    routes: Routes,
    *,
    per_assignment: bool,
    bias: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """Compute y [tokens · top_k, n], for each assignment its row of x times its expert's Wᵀ.

    x: [tokens · top_k, k] where per_assignment, else [tokens, k], a row for a token's top_k
    assignments; float32 on the CPU, float16 on CUDA. y is in the order of assignments, as
    moe_combine reads it; rows of experts that the rank does not have are left unwritten. bias:
    [experts, n], added. gated: the matrices are [gate; up], packed as gate_up (and no others may
    be), and y is silu(gate) * up [tokens · top_k, n / 2]. On CUDA what is finite stays so: beyond
    FP16's range it becomes +-65504. The numbers in routes are moe_permute's; they are not looked
    at. Raises ValueError where anything does not fit.
    """
    if torch.compiler.is_compiling():
        y: Tensor = torch.ops.volta.expert_linear(
            x, experts.data, experts.row_scale, experts.half_factor, experts.format, experts.n,
            experts.row_order, *routes, per_assignment, bias, gated,
        )  # fmt: skip
        return y
    return _expert_linear(x, experts, routes, per_assignment, bias, gated)


def _fake(
    x: Tensor, _data: Tensor, _row_scale: Tensor, _half_factor: Tensor, _format: str, n: int,
    _row_order: str, sorted_assignments: Tensor, _expert_offsets: Tensor, _tile_expert: Tensor,
    _tile_row: Tensor, _tile: int, _per_assignment: bool, _bias: Tensor | None, gated: bool,
) -> Tensor:  # fmt: skip
    return x.new_empty(sorted_assignments.shape[0], n // 2 if gated else n)


@op(
    "expert_linear(Tensor x, Tensor data, Tensor row_scale, Tensor half_factor, str format, int n, "
    "str row_order, Tensor sorted_assignments, Tensor expert_offsets, Tensor tile_expert, "
    "Tensor tile_row, int tile, bool per_assignment, Tensor? bias, bool gated) -> Tensor",
    _fake,
)
def _expert_linear_op(
    x: Tensor, data: Tensor, row_scale: Tensor, half_factor: Tensor, format: str, n: int,  # noqa: A002
    row_order: RowOrder, sorted_assignments: Tensor, expert_offsets: Tensor, tile_expert: Tensor,
    tile_row: Tensor, tile: int, per_assignment: bool, bias: Tensor | None, gated: bool,
) -> Tensor:  # fmt: skip
    """What the dispatcher calls, with tensors of any origin."""
    require_kernels(data.device)
    if x.dim() != 2 or data.dim() != 4:
        raise ValueError(
            f"x has shape {list(x.shape)}, needs [rows, k]; data has shape {list(data.shape)}, "
            "needs [experts, tiles, chunks, bytes]"
        )
    k = x.shape[1]
    stack = PackedWeight(format, data, row_scale, half_factor, n, k, row_order=row_order)
    check_packed(stack, data.shape[:1])
    experts = PackedExperts(format, data, row_scale, half_factor, n, k, row_order)
    routes = Routes(sorted_assignments, expert_offsets, tile_expert, tile_row, tile)
    return _expert_linear(x, experts, routes, per_assignment, bias, gated)


def _expert_linear(
    x: Tensor,
    experts: PackedExperts,
    routes: Routes,
    per_assignment: bool,
    bias: Tensor | None,
    gated: bool,
) -> Tensor:
    device, count = experts.device, experts.data.shape[0]
    activation = ACTIVATION[device.type]
    if gated != (experts.row_order == "gate_up"):
        raise ValueError(
            f"gated is {gated}, the experts are in {experts.row_order} order: gated needs gate_up "
            "order, and not gated plain order"
        )
    assignments = routes.sorted_assignments.numel()
    tokens = x.shape[0] if x.dim() == 2 else -1
    top_k = 0 if per_assignment else assignments // max(tokens, 1)
    if tokens * (top_k or 1) != assignments or x.shape[1] != experts.k:
        raise ValueError(
            f"x has shape {list(x.shape)}, needs [{'' if per_assignment else 'tokens, of '}"
            f"{assignments} assignments{'' if per_assignment else ' equally many each'}, "
            f"{experts.k}]"
        )
    check("x", x, device, activation, x.shape)
    if bias is not None:
        check("bias", bias, device, activation, (count, experts.n))
    _check_routes(routes, count, device)
    y = x.new_empty(assignments, experts.n // 2 if gated else experts.n)
    if assignments:
        product = _on_cuda if device.type == "cuda" else _on_cpu
        product(x, experts, routes, top_k, bias, gated, y)
    return y


def _check_routes(routes: Routes, experts: int, device: torch.device) -> None:
    """Raise ValueError unless they are of the shapes that moe_permute gives for these experts."""
    if routes.tile not in linear_cuda.KERNEL_ROWS:
        raise ValueError(
            f"tile is {routes.tile}, needs one of {', '.join(map(str, linear_cuda.KERNEL_ROWS))}"
        )
    assignments = routes.sorted_assignments.numel()
    tiles = assignments // routes.tile + min(assignments, experts)
    if tiles > _MAX_GRID:
        raise ValueError(
            f"{assignments} assignments to {experts} experts are {tiles} tiles of {routes.tile} "
            f"rows, needs {_MAX_GRID} or fewer"
        )
    for name, size in (
        ("sorted_assignments", assignments),
        ("expert_offsets", experts + 1),
        ("tile_expert", tiles),
        ("tile_row", tiles),
    ):
        check(name, getattr(routes, name), device, torch.int32, (size,))


def _on_cpu(
    x: Tensor, experts: PackedExperts, routes: Routes, top_k: int, bias: Tensor | None, gated: bool,
    y: Tensor,
) -> None:  # fmt: skip
    for i, (first, end) in enumerate(pairwise(routes.expert_offsets.tolist())):
        if first == end:
            continue
        rows = routes.sorted_assignments[first:end]
        of_x = x[rows // top_k if top_k else rows]
        y[rows] = linear_cpu(
            of_x, experts.expert(i), None if bias is None else bias[i], None, gated
        )


def _on_cuda(
    x: Tensor, experts: PackedExperts, routes: Routes, top_k: int, bias: Tensor | None, gated: bool,
    y: Tensor,
) -> None:  # fmt: skip
    # Used tiles come first, and are at most one for each expert and whole ones of what is left: of
    # tiles of one row that is half of them.
    assignments, used = y.shape[0], min(y.shape[0], experts.data.shape[0])
    tiles_z = used + (assignments - used) // routes.tile
    routing = (
        routes.tile_expert, routes.tile_row, routes.expert_offsets, routes.sorted_assignments,
    )  # fmt: skip
    linear_cuda.launch_tiles(x, experts, bias, None, y, gated, routes.tile, routing, tiles_z, top_k)
