"""Products with packed matrices, and dequantising them, beside torch's product in FP16."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from volta_runtime import ops
from volta_runtime.ops import packed as packing
from volta_runtime.ops.formats import FORMATS, TILE_ROWS
from volta_runtime.ops.native import ACTIVATION, launch

from .measure import Row, Timer
from .shapes import Matrix

FORMAT_NAMES = (
    "nvfp4", "mxfp4", "int4_g128", "q4_k", "q5_k", "q6_k", "q8_0", "fp8", "fp8_block",
)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
_RANDOM_ROWS = 4 * TILE_ROWS
# Scale bytes about 1, in formats that read them as numbers of their own.
_SCALE_BYTES = {"nvfp4": (48, 64), "mxfp4": (120, 128)}


def random_packed(matrix: Matrix, name: str, device: torch.device) -> ops.PackedWeight:
    """A matrix of random numbers: of a few tiles, which repeat, as memory does not care."""
    row, k = FORMATS[name], matrix.k

    def integers(low: int, high: int, columns: int, dtype: torch.dtype) -> Tensor:
        size = (_RANDOM_ROWS, columns)
        return torch.randint(low, high, size, dtype=dtype, device=device)

    if name == "q8_0":
        codes = integers(-127, 128, k, torch.int8)
    elif row.largest < 0:  # E4M3, without its NaN
        codes = integers(0, 127, k, torch.uint8) | (integers(0, 2, k, torch.uint8) << 7)
    else:
        codes = integers(0, row.largest + 1, k, torch.uint8)
    low_high = _SCALE_BYTES.get(name, (8, 16))
    scales = [
        torch.rand(_RANDOM_ROWS, -(-k // columns), device=device).to(dtype)
        if dtype.is_floating_point
        else integers(*low_high, -(-k // columns), dtype)
        for dtype, columns in row.scales
    ]
    few = packing.pack(name, codes, *scales, row_scale=torch.full((_RANDOM_ROWS,), 1e-3).to(device))
    gated = matrix.name == "gate_up"
    tiles = 2 * -(-matrix.n // 2 // TILE_ROWS) if gated else -(-matrix.n // TILE_ROWS)
    times = -(-tiles // few.data.shape[0])
    rows = tiles * TILE_ROWS
    return ops.PackedWeight(
        name,
        few.data.repeat(times, 1, 1)[:tiles],
        few.row_scale.repeat(times)[:rows],
        few.half_factor.repeat(times)[:rows],
        matrix.n,
        k,
        row_order="gate_up" if gated else "plain",
    )


def rotated(weight: ops.PackedWeight, copies: int) -> list[ops.PackedWeight]:
    """The same matrix in several places."""
    names = ("data", "row_scale", "half_factor")
    return [weight] + [
        replace(weight, **{name: getattr(weight, name).clone() for name in names})
        for _ in range(copies - 1)
    ]


def products(
    timer: Timer,
    matrices: Sequence[Matrix],
    formats: Sequence[str] = FORMAT_NAMES,
    ms: Sequence[int] = ROWS,
) -> Iterator[Row]:
    """Each matrix in each format: ops.linear, gated where the matrix is gate and up."""
    for matrix in matrices:
        halves = {row.m: row for row in _halves(timer, matrix, ms)}
        yield from halves.values()
        if timer.device.type == "cuda":
            time.sleep(0.5)  # products in FP16 take so much power that clocks are low for a while
        for name in formats:
            if matrix.k % FORMATS[name].multiple:
                continue
            first = random_packed(matrix, name, timer.device)
            weights = rotated(first, timer.copies(first.nbytes))
            for m in ms:
                yield _product(timer, matrix, weights, m, halves[m].us)
            yield _dequantize(timer, matrix, weights)


def _input(timer: Timer, m: int, k: int) -> Tensor:
    return torch.randn(m, k, device=timer.device, dtype=ACTIVATION[timer.device.type])


def _halves(timer: Timer, matrix: Matrix, ms: Sequence[int]) -> Iterator[Row]:
    """What torch takes in the device's activation dtype."""
    first = _input(timer, matrix.n, matrix.k)
    weights = [first] + [first.clone() for _ in range(timer.copies(first.nbytes) - 1)]
    for m in ms:
        x = _input(timer, m, matrix.k)
        took = timer.time([partial(torch.mm, x, w.T) for w in weights])
        nbytes = first.nbytes + x.nbytes + m * matrix.n * x.element_size()
        yield Row(
            timer.device.type, "linear", matrix.model, matrix.name, matrix.shape, m,
            f"torch {str(x.dtype).removeprefix('torch.')}", nbytes, 2 * m * matrix.n * matrix.k,
            took.best, took.median,
        )  # fmt: skip


def _product(
    timer: Timer, matrix: Matrix, weights: list[ops.PackedWeight], m: int, torch_us: float
) -> Row:
    first = weights[0]
    x = _input(timer, m, matrix.k)
    gated = first.row_order == "gate_up"
    took = timer.time([partial(ops.linear, x, w, gated=gated) for w in weights])
    columns = matrix.n // 2 if gated else matrix.n
    read = first.data.nbytes + first.row_scale.nbytes + first.half_factor.nbytes
    return Row(
        timer.device.type, "linear", matrix.model, matrix.name, matrix.shape, m, first.format,
        read + x.nbytes + m * columns * x.element_size(), 2 * m * matrix.n * matrix.k,
        took.best, took.median, torch_us,
    )  # fmt: skip


def _dequantize(timer: Timer, matrix: Matrix, weights: list[ops.PackedWeight]) -> Row:
    """The kernel alone, as ops.linear calls it before cuBLAS."""
    first, device = weights[0], timer.device
    out = _input(timer, first.rows, matrix.k)

    def call(w: ops.PackedWeight) -> None:
        factor = w.row_scale if device.type == "cpu" else w.half_factor
        number = FORMATS[w.format].number
        launch("dequantize", device, number, w.data, factor, out, w.rows, w.k)

    took = timer.time([partial(call, w) for w in weights])
    return Row(
        device.type, "dequantize", matrix.model, matrix.name, matrix.shape, 0, first.format,
        first.data.nbytes + first.half_factor.nbytes + out.nbytes, 0, took.best, took.median,
    )  # fmt: skip
