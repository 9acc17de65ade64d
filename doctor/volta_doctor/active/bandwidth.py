"""Measure device memory and host link of every GPU: JSON, GB/s (1e9 bytes) by GPU index.

`hbm` counts each byte of a device copy twice, as it is read and written.
"""

import json
from collections.abc import Callable

import torch

COPIED = 1 << 28  # bytes; far beyond the L2 cache, small beside 16 GB
ROUNDS = 12


def best_rate(copy: Callable[[], object], moved: int) -> float:
    """Return the best rate of several rounds: what disturbs one round is not the card."""
    best = float("inf")
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        copy()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return moved / best / 1e6


def measure(index: int) -> dict[str, float]:
    """Measure one GPU."""
    torch.cuda.set_device(index)
    here, there = (torch.zeros(COPIED, dtype=torch.uint8, device=index) for _ in range(2))
    host = torch.zeros(COPIED, dtype=torch.uint8, pin_memory=True)
    return {
        "hbm": best_rate(lambda: there.copy_(here), 2 * COPIED),
        "to_gpu": best_rate(lambda: here.copy_(host, non_blocking=True), COPIED),
        "to_host": best_rate(lambda: host.copy_(here, non_blocking=True), COPIED),
    }


print(json.dumps([measure(index) for index in range(torch.cuda.device_count())]))  # noqa: T201
