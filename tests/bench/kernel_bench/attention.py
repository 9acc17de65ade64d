"""Attention over the paged KV cache: a token of each of many sequences, and chunks of a prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from volta_runtime import ops
from volta_runtime.ops.native import ACTIVATION

from .measure import Row, Timer

KV_DTYPES = (torch.float16, torch.float8_e5m2, torch.int8)
HEADS = tuple((kv_heads, group) for kv_heads in (4, 8) for group in (4, 7, 8))
PREFILL_HEADS = ((4, 7), (8, 8))
WRITTEN = (16, 2048)  # tokens
_BLOCK = 16
_SCALE = 0.1


@dataclass(frozen=True)
class Sizes:
    """What is attended to. lengths: with a chunk of a prompt, the tokens up to its end."""

    sequences: int = 16
    context: int = 8192
    chunk: int = 2048
    lengths: tuple[int, ...] = (2048, 8192)
    head_dim: int = 128


@dataclass(frozen=True)
class _Cache:
    """Keys and values of sequences, their blocks in no order."""

    k: Tensor
    v: Tensor
    blocks: Tensor
    scales: dict[str, Tensor]


def _caches(
    timer: Timer, dtype: torch.dtype, sequences: int, tokens: int, kv_heads: int, dim: int
) -> list[_Cache]:
    """As many as it takes to be read from memory."""
    device = timer.device
    blocks = sequences * -(-tokens // _BLOCK)
    shape = (blocks, kv_heads, _BLOCK, dim)
    codes = torch.randn(shape, device=device, dtype=torch.float16)
    codes = (codes * 30).clamp(-127, 127).to(dtype) if dtype == torch.int8 else codes.to(dtype)
    order = torch.randperm(blocks, device=device).int().view(sequences, -1)
    scale = torch.full((kv_heads,), 1 / 30, device=device)
    scales = {"k_scale": scale, "v_scale": scale} if dtype == torch.int8 else {}
    copies = timer.copies(2 * codes.nbytes)
    return [_Cache(codes.clone(), codes.clone(), order, scales) for _ in range(copies)]


def _activations(timer: Timer, *shape: int) -> Tensor:
    return torch.randn(shape, device=timer.device, dtype=ACTIVATION[timer.device.type])


def _row(
    timer: Timer, kernel: str, heads: tuple[int, int], sizes: Sizes, q: Tensor, dtype: torch.dtype
) -> partial[Row]:
    """What all rows of attention share."""
    kv_heads, group = heads
    name = str(dtype).removeprefix("torch.")
    shape = f"{kv_heads} KV heads of {sizes.head_dim}, group {group}"
    return partial(
        Row, device=timer.device.type, kernel=kernel, model="", shape=shape, m=len(q), format=name
    )


def write(
    timer: Timer, sizes: Sizes, ms: Sequence[int] = WRITTEN, heads: Sequence[int] = (4, 8)
) -> Iterator[Row]:
    """New tokens' keys and values, to slots in no order."""
    dim = sizes.head_dim
    for kv_heads in heads:
        for dtype in KV_DTYPES:
            for m in ms:
                k, v = (_activations(timer, m, kv_heads, dim) for _ in range(2))
                nbytes = 2 * k.nbytes + 2 * k.numel() * dtype.itemsize
                copies = timer.copies(nbytes)
                cache, *_ = _caches(timer, dtype, 1, copies * m, kv_heads, dim)
                slots = torch.randperm(copies * m, device=timer.device).view(copies, m)
                took = timer.time(
                    [
                        partial(ops.kv_cache_write, k, v, cache.k, cache.v, part, **cache.scales)
                        for part in (row.clone() for row in slots)
                    ]
                )
                yield _row(timer, "kv_cache_write", (kv_heads, 1), sizes, k, dtype)(
                    name="", bytes=nbytes, flops=0, us=took.best, median_us=took.median
                )


def decode(timer: Timer, sizes: Sizes, heads: Sequence[tuple[int, int]] = HEADS) -> Iterator[Row]:
    """One token of each sequence, all of the same length."""
    dim, count = sizes.head_dim, sizes.sequences
    lengths = torch.full((count,), sizes.context, dtype=torch.int32, device=timer.device)
    for kv_heads, group in heads:
        for dtype in KV_DTYPES:
            caches = _caches(timer, dtype, count, sizes.context, kv_heads, dim)
            q = _activations(timer, count, kv_heads * group, dim)
            took = timer.time(
                [
                    partial(ops.paged_decode, q, c.k, c.v, c.blocks, lengths, _SCALE, **c.scales)
                    for c in caches
                ]
            )
            read = 2 * count * sizes.context * kv_heads * dim * dtype.itemsize
            yield _row(timer, "paged_decode", (kv_heads, group), sizes, q, dtype)(
                name=f"{sizes.context} tokens",
                bytes=read + 2 * q.nbytes,
                flops=4 * q.numel() * sizes.context,
                us=took.best,
                median_us=took.median,
            )


def prefill(
    timer: Timer, sizes: Sizes, heads: Sequence[tuple[int, int]] = PREFILL_HEADS
) -> Iterator[Row]:
    """One chunk of one sequence, at its start and further on."""
    dim, chunk = sizes.head_dim, sizes.chunk
    offsets = torch.tensor([0, chunk], dtype=torch.int32, device=timer.device)
    for kv_heads, group in heads:
        for dtype in KV_DTYPES:
            for length in sizes.lengths:
                caches = _caches(timer, dtype, 1, length, kv_heads, dim)[:8]
                q = _activations(timer, chunk, kv_heads * group, dim)
                lengths = torch.tensor([length], dtype=torch.int32, device=timer.device)
                took = timer.time([
                    partial(
                        ops.paged_prefill, q, c.k, c.v, c.blocks, offsets, lengths, _SCALE, chunk,
                        **c.scales,
                    )
                    for c in caches
                ])  # fmt: skip
                seen = chunk * (length - chunk) + chunk * (chunk + 1) // 2
                yield _row(timer, "paged_prefill", (kv_heads, group), sizes, q, dtype)(
                    name=f"up to {length} tokens",
                    bytes=2 * length * kv_heads * dim * dtype.itemsize + 2 * q.nbytes,
                    flops=4 * kv_heads * group * dim * seen,
                    us=took.best,
                    median_us=took.median,
                )
