"""Attention over the paged KV cache."""

import torch
from torch import Tensor

from volta_runtime.ops.kv_cache import CUDA_HEAD_DIMS, check_index, check_queries, kv_type
from volta_runtime.ops.native import check, launch, op

_MAX_HEAD_DIM = 256
_STATISTICS = 4  # numbers beside the sums of a split
_BLOCKS_PER_SM = 8  # twice what a V100 holds at a time, so that uneven lengths even out
# As in csrc/attention_math.h.
_MIN_SPLIT_TOKENS = 128
_MAX_SPLIT_TOKENS = 4096


def _paged_decode_fake(q: Tensor, *_args: object, **_kwargs: object) -> Tensor:
    return torch.empty_like(q)


@op(
    "paged_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor lengths, "
    "float scale, *, int window=0, float soft_cap=0.0, Tensor? sinks=None, Tensor? k_scale=None, "
    "Tensor? v_scale=None) -> Tensor",
    _paged_decode_fake,
)
def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Attention of one token a sequence over the keys and values of that sequence.

    q: [sequences, heads, head_dim], float32 on the CPU and float16 on CUDA; heads is a multiple of
    kv_heads, head_dim 64, 96, 128, 192 or 256 on CUDA and at most 256 on the CPU. k_cache, v_cache,
    k_scale, v_scale: as in ops.kv_cache. block_table: int32 [sequences, max_blocks]; entries beyond
    a length may hold anything. lengths: int32 [sequences], tokens with the present one, which is in
    the cache already; 0 gives zeros.

    A logit is scale · q·k, with soft_cap > 0 soft_cap · tanh(scale · q·k / soft_cap). window > 0
    leaves the last `window` tokens. sinks: float32 [heads], a further logit that takes probability
    and gives no value. Returns [sequences, heads, head_dim] of q's dtype.

    Raises ValueError for other shapes, dtypes, strides or devices, and on the CPU for lengths
    beyond the block table; on CUDA these count as its end, and the caller answers for its entries.
    """
    kind = kv_type(k_cache, v_cache, k_scale, v_scale)
    device = k_cache.device
    kv_heads, block_size, dim = k_cache.shape[1:]
    check_queries("sequences", q, k_cache, window, soft_cap, sinks)
    if dim > _MAX_HEAD_DIM or (device.type == "cuda" and dim not in CUDA_HEAD_DIMS):
        raise ValueError(
            f"head_dim is {dim}, needs one of {CUDA_HEAD_DIMS} on CUDA, "
            f"up to {_MAX_HEAD_DIM} on cpu"
        )
    sequences, heads = q.shape[:2]
    max_blocks = block_table.shape[-1] if block_table.dim() else 0
    check("block_table", block_table, device, torch.int32, (sequences, max_blocks))
    check("lengths", lengths, device, torch.int32, (sequences,))
    check_index("lengths", lengths, 0, max_blocks * block_size + 1)

    out = torch.empty_like(q)
    fill, splits = _splits(device, sequences * kv_heads, max_blocks * block_size)
    partials = None
    if device.type == "cuda":
        partials = q.new_empty(sequences, heads, splits, dim + _STATISTICS, dtype=torch.float32)
    launch(
        "paged_decode", device, q, k_cache, v_cache, block_table, lengths, sinks, k_scale, v_scale,
        out, partials, sequences, heads, kv_heads, dim, block_size, max_blocks, window, scale,
        soft_cap, fill, splits, kind,
    )  # fmt: skip
    return out


def _splits(device: torch.device, rows: int, max_tokens: int) -> tuple[int, int]:
    """Splits of each sequence that fill the GPU, and the most that any length gets.

    rows: sequences by KV heads. From shapes alone, so that a CUDA graph serves all lengths.
    """
    if device.type == "cpu":
        return 1, 1
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    fill = min(-(-sms * _BLOCKS_PER_SM // max(rows, 1)), -(-max_tokens // _MIN_SPLIT_TOKENS))
    return max(fill, 1), max(fill, -(-max_tokens // _MAX_SPLIT_TOKENS), 1)
