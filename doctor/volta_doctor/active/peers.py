"""Copy between every two GPUs, then all-reduce over all of them, and compare every byte: JSON."""

import json
import time

import torch
from torch.cuda import nccl

COPIED = 1 << 26  # bytes of one peer copy
REDUCED = 8 << 30  # bytes that each rank holds, where its memory allows
ROUNDS = 5

count = torch.cuda.device_count()
gpus = [torch.device("cuda", index) for index in range(count)]


def copy(source: int, target: int) -> dict[str, int]:
    """Send random bytes and count those that arrive wrong, compared on the host."""
    sent = torch.randint(0, 256, (COPIED,), dtype=torch.uint8, device=gpus[source])
    arrived = torch.zeros_like(sent, device=gpus[target]).copy_(sent)
    torch.cuda.synchronize(gpus[target])
    wrong = int((arrived.cpu() != sent.cpu()).sum())
    return {"source": source, "target": target, "wrong_bytes": wrong}


def all_reduce() -> dict[str, float]:
    """Sum the ranks' own numbers; exact in FP32. Bus bandwidth as nccl-tests define it."""
    free = min(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus)
    size = min(REDUCED, free * 6 // 10) // 4
    buffers = [torch.empty(size, dtype=torch.float32, device=gpu) for gpu in gpus]
    best, wrong = float("inf"), 0
    for _ in range(ROUNDS):
        for rank, buffer in enumerate(buffers):
            buffer.fill_(rank + 1)
            torch.cuda.synchronize(buffer.device)
        started = time.monotonic()
        nccl.all_reduce(buffers)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        best = min(best, time.monotonic() - started)
    for buffer in buffers:
        for part in buffer.split(1 << 26):  # the comparison takes memory too
            wrong += int((part != count * (count + 1) / 2).sum())
    moved = 4 * size
    rate = 2 * (count - 1) / count * moved / best / 1e9
    return {"ranks": count, "bytes": moved, "bus_gbs": rate, "wrong_elements": wrong}


pairs = [(source, target) for source in range(count) for target in range(count)]
copies = [copy(source, target) for source, target in pairs if source != target]
reduced = all_reduce() if count > 1 else None
print(json.dumps({"copies": copies, "all_reduce": reduced}))  # noqa: T201
