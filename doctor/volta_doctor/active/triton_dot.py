"""Multiply two 32 x 32 FP16 matrices with tl.dot on every GPU.

Prints JSON: by GPU index the relative error, or why the product could not be had.
"""

import json

import torch
import triton
import triton.language as tl

SIDE = 32


@triton.jit
def dot(a, b, c, side: tl.constexpr):
    """One block's product; the error of a card shows in any size."""
    rows, columns = tl.arange(0, side)[:, None], tl.arange(0, side)[None, :]
    at = rows * side + columns
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def relative_error(index: int) -> float:
    """Return the largest error against the host's product, relative to its largest element."""
    torch.manual_seed(0)
    a, b = (torch.randn(SIDE, SIDE, dtype=torch.float16) for _ in range(2))
    expected = a.float() @ b.float()
    with torch.cuda.device(index):
        c = torch.zeros(SIDE, SIDE, dtype=torch.float32, device="cuda")
        dot[(1,)](a.cuda(), b.cuda(), c, SIDE)
    return float((c.cpu() - expected).abs().max() / expected.abs().max())


def attempt(index: int) -> float | str:
    """Return the error, or what Triton says where it cannot compile for this card."""
    try:
        return relative_error(index)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


print(json.dumps([attempt(index) for index in range(torch.cuda.device_count())]))  # noqa: T201
