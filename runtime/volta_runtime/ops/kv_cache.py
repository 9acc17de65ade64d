"""The paged KV cache: writing keys and values, copying blocks, moving them between memories.

k_cache and v_cache are [blocks, kv_heads, block_size, head_dim], block_size a multiple of 16; token
t of a sequence lies in block block_table[t // block_size] at offset t % block_size. Their dtype is
float16, float8_e5m2, int8 or, on the CPU, float32. INT8 stands for code · scale with one float32
scale a KV head, [kv_heads], for each cache; the other types have none.
"""

import torch
from torch import Tensor

from volta_runtime.ops.native import ACTIVATION, ALIGNMENT, check, launch, op, require_kernels

# As enum KvType of csrc/kv_cache.h.
KV_TYPES = {torch.float16: 0, torch.float8_e5m2: 1, torch.int8: 2, torch.float32: 3}

CUDA_HEAD_DIMS = (64, 96, 128, 192, 256)  # of the CUDA kernels of attention

_BLOCK_MULTIPLE = 16  # tokens


def kv_type(
    k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None
) -> int:
    """The caches' type as the kernels take it; ValueError unless caches and scales are valid."""
    device, dtype, shape = k_cache.device, k_cache.dtype, tuple(k_cache.shape)
    require_kernels(device)
    if dtype not in KV_TYPES or (dtype == torch.float32 and device.type != "cpu"):
        raise ValueError(
            f"k_cache is {dtype} on {device}; needs float16, float8_e5m2, int8 or, on the CPU, "
            "float32"
        )
    if len(shape) != 4 or 0 in shape[1:] or shape[2] % _BLOCK_MULTIPLE:
        raise ValueError(
            f"k_cache has shape {list(shape)}, needs [blocks, kv_heads, block_size, head_dim] with "
            f"block_size a multiple of {_BLOCK_MULTIPLE}"
        )
    check("k_cache", k_cache, device, dtype, shape)
    check("v_cache", v_cache, device, dtype, shape)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if (scale is not None) != (dtype == torch.int8):
            raise ValueError(
                f"{name} is {'given' if scale is not None else 'missing'} for a cache of {dtype}: "
                "int8 needs one, other types have none"
            )
        if scale is not None:
            check(name, scale, device, torch.float32, (shape[1],))
    return KV_TYPES[dtype]


def check_index(name: str, index: Tensor, low: int, high: int) -> None:
    """Raise ValueError for an index outside [low, high); on CUDA that would wait for the device."""
    if index.device.type == "cpu" and index.numel():
        least, most = (int(x) for x in index.aminmax())
        if least < low or most >= high:
            raise ValueError(f"{name} holds {least} to {most}, needs {low} to {high - 1}")


@op(
    "kv_cache_write(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, "
    "Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
    lambda *_args, **_kwargs: None,
)
def kv_cache_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Store keys and values in their slots of the caches, in place.

    k, v: [tokens, kv_heads, head_dim], float32 on the CPU and float16 on CUDA (there head_dim is a
    multiple of 16). slots: int64 [tokens], block * block_size + offset, or -1 to skip the token; no
    slot twice. A value becomes the nearest code, and beyond the range the range's end.

    Raises ValueError for other shapes, dtypes, strides or devices, and on the CPU for slots outside
    the cache; on CUDA the caller answers for the slots.
    """
    kind = kv_type(k_cache, v_cache, k_scale, v_scale)
    device = k_cache.device
    blocks, heads, size, dim = k_cache.shape
    tokens = k.shape[0] if k.dim() else 0
    if device.type == "cuda" and dim % ALIGNMENT:
        raise ValueError(f"head_dim is {dim}, needs a multiple of {ALIGNMENT} on CUDA")
    check("k", k, device, ACTIVATION[device.type], (tokens, heads, dim))
    check("v", v, device, ACTIVATION[device.type], (tokens, heads, dim))
    check("slots", slots, device, torch.int64, (tokens,))
    check_index("slots", slots, -1, blocks * size)
    launch(
        "kv_cache_write", device, k, v, k_cache, v_cache, slots, k_scale, v_scale,
        tokens, heads, dim, size, kind,
    )  # fmt: skip


@op(
    "kv_cache_copy(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor pairs) -> ()",
    lambda *_args: None,
)
def kv_cache_copy(k_cache: Tensor, v_cache: Tensor, pairs: Tensor) -> None:
    """Copy blocks inside both caches, [blocks, ...] of any dtype, in place.

    pairs: int64 [n, 2] on the caches' device, source and destination; a pair with a -1 is skipped.
    They are copied in no order: no destination may be in another pair. A block takes a multiple of
    16 bytes on CUDA.

    Raises ValueError for other shapes, dtypes, strides or devices, and on the CPU for blocks
    outside the cache; on CUDA the caller answers for the pairs.
    """
    device = k_cache.device
    require_kernels(device)
    check("k_cache", k_cache, device, k_cache.dtype, tuple(k_cache.shape))
    check("v_cache", v_cache, device, k_cache.dtype, tuple(k_cache.shape))
    block_bytes = _block_bytes("k_cache", k_cache)
    if device.type == "cuda" and block_bytes % ALIGNMENT:
        raise ValueError(f"a block takes {block_bytes} bytes, needs a multiple of {ALIGNMENT}")
    check("pairs", pairs, device, torch.int64, (pairs.shape[0] if pairs.dim() else 0, 2))
    check_index("pairs", pairs, -1, k_cache.shape[0])
    launch("kv_cache_copy", device, k_cache, v_cache, pairs, pairs.shape[0], block_bytes)


@op(
    "kv_cache_swap(Tensor source, Tensor(a!) destination, Tensor pairs) -> ()",
    lambda *_args: None,
)
def kv_cache_swap(source: Tensor, destination: Tensor, pairs: Tensor) -> None:
    """Copy blocks of one cache to another, of which either may be on the CPU.

    source, destination: [blocks, ...] of the same dtype and block shape. pairs: int64 [n, 2] on the
    CPU, block of the source and block of the destination; no destination twice. Where one is on
    CUDA the copies are queued on the current stream, one for each run of pairs in sequence on both
    sides; the CPU's side must be pinned and may be used once the stream is done. Not for CUDA
    graphs: a graph would repeat the pairs it was captured with.

    Raises ValueError for other shapes, dtypes, strides or devices, memory that is not pinned, and
    blocks outside the caches.
    """
    device = source.device if source.device.type != "cpu" else destination.device
    require_kernels(device)
    if destination.device not in (device, torch.device("cpu")):
        raise ValueError(f"source is on {source.device}, destination on {destination.device}")
    check("source", source, source.device, destination.dtype, tuple(source.shape))
    check(
        "destination", destination, destination.device, source.dtype,
        (*destination.shape[:1], *source.shape[1:]),
    )  # fmt: skip
    check("pairs", pairs, torch.device("cpu"), torch.int64, (len(pairs) if pairs.dim() else 0, 2))
    for name, cache, column in (("source", source, 0), ("destination", destination, 1)):
        if device.type == "cuda" and cache.device.type == "cpu" and not cache.is_pinned():
            raise ValueError(f"{name} {list(cache.shape)} on the CPU is not pinned")
        check_index(f"pairs[:, {column}] ({name})", pairs[:, column], 0, cache.shape[0])
    block_bytes = _block_bytes("source", source)
    launch("kv_cache_swap", device, source, destination, pairs, pairs.shape[0], block_bytes)


def check_queries(
    rows: str, q: Tensor, k_cache: Tensor, window: int, soft_cap: float, sinks: Tensor | None
) -> None:
    """Raise ValueError unless queries [rows, heads, head_dim] and their options fit the cache."""
    device, kv_heads, dim = k_cache.device, k_cache.shape[1], k_cache.shape[3]
    if q.dim() != 3 or q.shape[1] == 0 or q.shape[1] % kv_heads or q.shape[2] != dim:
        raise ValueError(
            f"q has shape {list(q.shape)}, needs [{rows}, heads, {dim}] with heads a multiple of "
            f"the cache's {kv_heads}"
        )
    if window < 0 or soft_cap < 0:
        raise ValueError(f"window is {window}, soft_cap {soft_cap}: both need 0 or more")
    check("q", q, device, ACTIVATION[device.type], tuple(q.shape))
    if sinks is not None:
        check("sinks", sinks, device, torch.float32, (q.shape[1],))


def _block_bytes(name: str, cache: Tensor) -> int:
    if cache.dim() < 1 or 0 in cache.shape[1:]:
        raise ValueError(f"{name} has shape {list(cache.shape)}, needs [blocks, ...]")
    return cache[:1].numel() * cache.element_size() if len(cache) else cache.element_size()
