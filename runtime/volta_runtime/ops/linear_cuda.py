"""Products with packed matrices on CUDA: which kernels take them, spread how over the GPU.

Up to 32 rows of x are multiplied by the tiles as they lie, in FP16 or by tensor cores. More rows
pay for writing W out in FP16, a slab at a time, for cuBLAS.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from volta_runtime.ops.formats import FORMATS, TILE_ROWS
from volta_runtime.ops.linear_cpu import epilogue
from volta_runtime.ops.native import check, launch
from volta_runtime.ops.packed import PackedWeight

if TYPE_CHECKING:
    from volta_runtime.ops.expert_linear import PackedExperts

KERNEL_ROWS = (1, 2, 8, 16, 32)  # of x, that each kernel of packed tiles has room for
MAX_ROWS = KERNEL_ROWS[-1]
GEMV_ROWS = 2  # of x, that the GEMV takes
_COUNTERS = 1 << 14
_WORKSPACE = 1 << 21  # floats
_SLAB = 1 << 25  # FP16 weights written out in one go


@dataclass(frozen=True)
class Plan:
    """How a product is spread: see csrc/linear.h."""

    warp_tiles: int
    warps: int
    warps_k: int
    split: int

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """In the order of the launcher."""
        return self.warp_tiles, self.warps, self.warps_k, self.split


@dataclass(frozen=True)
class Scratch:
    """Where blocks that split K meet. counters are zero between launches."""

    workspace: Tensor
    counters: Tensor


def taken_rows(m: int) -> int:
    """Rows of x that the kernel which takes m has room for."""
    return next(rows for rows in KERNEL_ROWS if m <= rows)


@functools.lru_cache(maxsize=4096)
def plan(m: int, tiles: int, chunks: int, tiles_z: int, multiprocessors: int) -> Plan:
    """Fill the GPU: where rows are few, K is shared out, first in blocks and then among them."""
    all_tiles = tiles * tiles_z
    if m > GEMV_ROWS:
        warp_tiles, warps, resident = 1, 4 if m <= 16 else 2, 16
        warps_k = warps if all_tiles <= 64 * multiprocessors else warps // 2
    elif all_tiles <= 2 * multiprocessors:  # a block for each multiprocessor
        warp_tiles, warps, resident = 1, 16, 16
        warps_k = 16 if all_tiles <= multiprocessors else 8
    else:
        warp_tiles, warps, warps_k, resident = 2, 4, 4, 24
    in_block = warps // warps_k * warp_tiles
    blocks = -(-tiles // in_block) * tiles_z
    split = max(1, min(resident * multiprocessors // (warps * blocks), chunks // (2 * warps_k), 8))
    floats = blocks * in_block * TILE_ROWS * taken_rows(m)
    fits = blocks <= _COUNTERS and floats <= _WORKSPACE
    return Plan(warp_tiles, warps, warps_k, min(split, _WORKSPACE // floats) if fits else 1)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a CUDA device."""
    return torch.cuda.get_device_properties(device).multi_processor_count


_scratch: dict[tuple[torch.device, int | None], Scratch] = {}


def scratch(device: torch.device) -> Scratch:
    """The current stream's; of a device's graphs, which run one at a time, one for all.

    Raises RuntimeError in a graph's capture where nothing was multiplied on the device before it:
    memory of the graph would be zero only in its replays.
    """
    capturing = torch.cuda.is_current_stream_capturing()
    key = (device, None if capturing else torch.cuda.current_stream(device).cuda_stream)
    if key not in _scratch:
        if capturing:
            raise RuntimeError(
                f"a CUDA graph is being captured on {device}, where no packed matrix was multiplied"
                " yet: run the model once before capturing it"
            )
        for other in (key, (device, None)):
            _scratch.setdefault(
                other,
                Scratch(
                    torch.empty(_WORKSPACE, dtype=torch.float32, device=device),
                    torch.zeros(_COUNTERS, dtype=torch.int32, device=device),
                ),
            )
    return _scratch[key]


def linear_cuda(
    x: Tensor, packed: PackedWeight, bias: Tensor | None, residual: Tensor | None, gated: bool
) -> Tensor:
    """Compute ops.linear.linear on CUDA; what linear checks is checked."""
    n, k = packed.n, packed.k
    columns = n // 2 if gated else n
    if bias is not None:
        check("bias", bias, x.device, torch.float16, (n,))
    if residual is not None:
        check("residual", residual, x.device, torch.float16, (*x.shape[:-1], columns))
    if packed.perm is not None:
        x = x.index_select(-1, packed.perm)
    m = x.numel() // k if k else 0
    y = x.new_empty(*x.shape[:-1], columns)
    if m == 0:
        return y
    if m > MAX_ROWS or (packed.row_order == "gate_up" and not gated):
        return _through_half(x.view(m, k), packed, bias, residual, gated).view(y.shape)
    launch_tiles(x, packed, bias, residual, y, gated, m)
    return y


def launch_tiles(
    x: Tensor, w: "PackedWeight | PackedExperts", bias: Tensor | None, residual: Tensor | None,
    y: Tensor, gated: bool, m: int, routing: Sequence[Tensor | None] = (None,) * 4,
    tiles_z: int = 1, top_k: int = 0,
) -> None:  # fmt: skip
    """Launch the kernels of packed tiles, planned for this GPU: csrc/linear.h tells the rest.

    routing: tile_expert, tile_row, expert_offsets and sorted assignments; without, W is one matrix.
    """
    tiles, chunks = w.data.shape[-3:-1]
    chosen = plan(m, tiles, chunks, tiles_z, multiprocessors(x.device))
    at = scratch(x.device)
    launch(
        "packed_linear", x.device, FORMATS[w.format].number, x, w.data, w.row_scale, w.half_factor,
        bias, residual, y, at.workspace, at.counters, *routing, m, w.n, w.k, tiles, tiles_z, top_k,
        int(gated), *chosen.arguments,
    )  # fmt: skip


def _through_half(
    x: Tensor, packed: PackedWeight, bias: Tensor | None, residual: Tensor | None, gated: bool
) -> Tensor:
    """W in FP16, each row with a power of two of its own, and cuBLAS with FP32 sums."""
    k, rows = packed.k, packed.rows
    step = max(TILE_ROWS, _SLAB // k // TILE_ROWS * TILE_ROWS)
    y = torch.empty(x.shape[0], rows, dtype=torch.float32, device=x.device)
    w = torch.empty(min(step, rows), k, dtype=torch.float16, device=x.device)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        part = slice(first, first + count)
        factor = packed.half_factor[part]
        launch(
            "dequantize", x.device, FORMATS[packed.format].number,
            packed.data[first // TILE_ROWS :], factor, w, count, k,
        )  # fmt: skip
        product = torch.mm(x, w[:count].T, out_dtype=torch.float32)
        y[:, part] = product * (packed.row_scale[part] / factor)
    if residual is not None:
        residual = residual.view(x.shape[0], -1)
    y = epilogue(y, packed, bias, residual, gated)
    largest = torch.finfo(torch.float16).max
    return y.clamp_(-largest, largest).half()
