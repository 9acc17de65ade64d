"""Grouped products of a mixture of experts, each token's with the experts chosen for it."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from volta_runtime import ops
from volta_runtime.ops.formats import FORMATS
from volta_runtime.ops.native import ACTIVATION

from .matrices import FORMAT_NAMES, ROWS, random_packed
from .measure import Row, Timer
from .shapes import Matrix, Model, expert_matrices


def products(
    timer: Timer,
    model: Model,
    formats: Sequence[str] = FORMAT_NAMES,
    ms: Sequence[int] = ROWS,
) -> Iterator[Row]:
    """ops.expert_linear: gate and up for each token, down for each of its assignments."""
    for matrix in expert_matrices(model):
        for name in formats:
            if matrix.k % FORMATS[name].multiple:
                continue
            one = random_packed(matrix, name, timer.device)
            nbytes = one.nbytes * matrix.count
            experts = [
                ops.stack_experts([one] * matrix.count, matrix.count)
                for _ in range(timer.copies(nbytes))
            ]
            for m in ms:
                yield _product(timer, matrix, experts, m, model.top_k)


def _product(
    timer: Timer, matrix: Matrix, experts: Sequence[ops.PackedExperts], m: int, top_k: int
) -> Row:
    device, dtype = timer.device, ACTIVATION[timer.device.type]
    gated = matrix.name == "gate_up"
    x = torch.randn(m if gated else m * top_k, matrix.k, device=device, dtype=dtype)
    calls, read = [], 0
    for stack in experts:
        first = 0
        while first < matrix.count:
            chosen, used = _choose(timer, m, top_k, matrix.count, first)
            first += used
            read += used * stack.nbytes // matrix.count
            tile = ops.route_tile(chosen.numel(), matrix.count)
            routes = ops.Routes(*ops.moe_permute(chosen, matrix.count, tile), tile)
            calls.append(
                partial(ops.expert_linear, x, stack, routes, per_assignment=not gated, gated=gated)
            )
    took = timer.time(calls)
    columns = matrix.n // 2 if gated else matrix.n
    return Row(
        device.type, "expert_linear", matrix.model, matrix.name,
        f"{top_k} of {matrix.count}, {matrix.shape}", m, experts[0].format,
        read // len(calls) + x.nbytes + m * top_k * columns * x.element_size(),
        2 * m * top_k * matrix.n * matrix.k, took.best, took.median,
    )  # fmt: skip


def _choose(timer: Timer, m: int, top_k: int, count: int, first: int) -> tuple[Tensor, int]:
    """Random experts of m tokens, [m, top_k], and how many there are.

    They are numbered from first on, so that calls one after another read other memory.
    """
    random = torch.rand(m, count, device=timer.device).topk(top_k).indices
    distinct, number = random.unique(return_inverse=True)
    return ((number + first) % count).int(), len(distinct)
