"""What sample keeps and draws, by sorting in float64, and arguments for it.

The noise is a Philox written over NumPy's integers, which shares no code with the kernels.
"""

import numpy as np
import pytest
import torch

F32, F16, I32, I64 = torch.float32, torch.float16, torch.int32, torch.int64
INF, NAN = torch.inf, torch.nan
MASK = 0xFFFFFFFF

# The kinds of kernels: a fixture's parameters for place_of.
PLACES = [
    "cpu",
    pytest.param("cuda-float32", marks=pytest.mark.gpu),
    pytest.param("cuda-float16", marks=pytest.mark.gpu),
]


def place_of(request):
    """place(logits) moves and converts logits as one kind of kernel takes them."""
    if request.param == "cpu":
        return lambda logits: logits.float()
    cuda = request.getfixturevalue("cuda")
    return lambda logits: logits.to(cuda, F16 if request.param.endswith("16") else F32)


def params(rows, device, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=None, steps=None):
    """The arguments of sample after logits; a number stands for that number in every row."""

    def column(value, dtype):
        value = torch.as_tensor(value, dtype=dtype)
        return value.expand(rows).contiguous().to(device)

    return (
        column(temperature, F32),
        column(top_k, I32),
        column(top_p, F32),
        column(min_p, F32),
        column(torch.arange(rows) if seeds is None else seeds, I64),
        column(0 if steps is None else steps, I64),
    )


def mixed(rows, device, seed):
    """Parameters of all kinds, mixed."""
    g = torch.Generator().manual_seed(seed)

    def pick(*values):
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=g)]

    return params(
        rows,
        device,
        pick(0.0, 0.3, 0.7, 1.0, 1.5, 3.0),
        pick(0, 0, 1, 5, 40, 1000, 10**9),
        pick(1.0, 1.0, 0.3, 0.9, 0.99),
        pick(0.0, 0.0, 0.02, 0.3),
        torch.randint(-(2**62), 2**62, (rows,), generator=g),
        torch.randint(0, 100000, (rows,), generator=g),
    )


def kept(row, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The ids that may be drawn, likeliest first, and their exact probabilities."""
    logits = row.double().cpu().nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    logits, ids = logits.sort(descending=True, stable=True)
    weights = ((logits - logits[0]) / np.float32(temperature).item()).exp()
    if top_k > 0:
        weights = weights[:top_k]
    if top_p < 1:
        before = weights.cumsum(0) - weights
        size = int((before < np.float32(top_p).item() * weights.sum() * (1 - 1e-12)).sum())
        weights = weights[: max(size, 1)]
    weights = weights[weights >= min(np.float32(min_p).item(), 1.0)]
    weights = weights[weights > 0]
    return ids[: len(weights)], weights / weights.sum()


def deviation(tokens, ids, probs):
    """How many sigmas a chi-square over the tokens lies off, by Wilson and Hilferty."""
    expected = probs * tokens.numel()
    assert expected.min() > 5
    counts = torch.bincount(tokens.cpu(), minlength=int(ids.max()) + 1)[ids]
    assert counts.sum() == tokens.numel()
    chi2, df = ((counts - expected) ** 2 / expected).sum().item(), len(ids) - 1
    return ((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / (2 / (9 * df)) ** 0.5


def philox(key, counter):
    """Philox4x32-10 over arrays; key: two, counter: four uint64 arrays of 32-bit numbers."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & MASK, (a >> np.uint64(32)) ^ c3 ^ k1, a
        c3 = c3 & MASK
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & MASK, (k1 + np.uint64(0xBB67AE85)) & MASK
    return c0, c1, c2, c3
