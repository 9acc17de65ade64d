"""Attention of prompt chunks over the paged KV cache."""

import torch
from torch import Tensor

from volta_runtime.ops.kv_cache import CUDA_HEAD_DIMS, check_index, check_queries, kv_type
from volta_runtime.ops.native import check, launch, op

_MAX_ROWS = 2**30  # queries of a chunk by heads of a group, and rows of a cache


def _paged_prefill_fake(q: Tensor, *_args: object, **_kwargs: object) -> Tensor:
    return torch.empty_like(q)


@op(
    "paged_prefill(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, "
    "Tensor query_offsets, Tensor lengths, float scale, int max_query, *, int window=0, "
    "float soft_cap=0.0, Tensor? sinks=None, Tensor? k_scale=None, Tensor? v_scale=None) -> Tensor",
    _paged_prefill_fake,
)
def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_offsets: Tensor,
    lengths: Tensor,
    scale: float,
    max_query: int,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Attention of a chunk of tokens a sequence over that sequence's keys and values.

    q: [tokens, heads, head_dim], the chunks of all sequences one after another, float32 on the CPU
    and float16 on CUDA; heads is a multiple of kv_heads, head_dim 64, 96, 128, 192 or 256. k_cache,
    v_cache, k_scale, v_scale: as in ops.kv_cache. query_offsets: int32 [sequences + 1], the first
    token of each chunk in q, then the end of the last; a chunk may be empty. lengths: int32
    [sequences], tokens of a sequence with its chunk, whose keys and values are in the cache
    already. block_table: int32 [sequences, max_blocks]; entries that no query sees may hold
    anything. max_query: no chunk is longer.

    Query i of c sees the tokens up to lengths - c + i, with window > 0 the last `window` of these;
    one that sees none gets zeros. A logit is scale · q·k, with soft_cap > 0
    soft_cap · tanh(scale · q·k / soft_cap). sinks: float32 [heads], a further logit that takes
    probability and gives no value. Returns q's shape and dtype, zeros for tokens of no chunk.

    Raises ValueError for other shapes, dtypes, strides or devices, and on the CPU for offsets that
    fall, leave q or exceed max_query and for lengths beyond the block table; on CUDA the caller
    answers for offsets and block numbers, and a length beyond the table counts as its end.
    """
    kind = kv_type(k_cache, v_cache, k_scale, v_scale)
    device = k_cache.device
    blocks, kv_heads, block_size, dim = k_cache.shape
    if dim not in CUDA_HEAD_DIMS:
        raise ValueError(f"head_dim is {dim}, needs one of {CUDA_HEAD_DIMS}")
    check_queries("tokens", q, k_cache, window, soft_cap, sinks)
    if block_table.dim() != 2 or 0 in block_table.shape:
        raise ValueError(
            f"block_table has shape {list(block_table.shape)}, needs [sequences, max_blocks]"
        )
    tokens, heads = q.shape[:2]
    sequences, max_blocks = block_table.shape
    if not 0 < max_query * (heads // kv_heads) < _MAX_ROWS:
        raise ValueError(
            f"max_query is {max_query} for {heads // kv_heads} heads a KV head: their product "
            f"needs 1 to {_MAX_ROWS - 1}"
        )
    if max(max_blocks, blocks * kv_heads) * block_size >= _MAX_ROWS:
        raise ValueError(
            f"a sequence has up to {max_blocks} blocks, the cache {blocks} of {kv_heads} KV heads: "
            f"of {block_size} tokens each, both need fewer than {_MAX_ROWS} tokens"
        )
    check("block_table", block_table, device, torch.int32, (sequences, max_blocks))
    check("query_offsets", query_offsets, device, torch.int32, (sequences + 1,))
    check("lengths", lengths, device, torch.int32, (sequences,))
    check_index("query_offsets", query_offsets, 0, tokens + 1)
    if device.type == "cpu":  # elsewhere diff() alone would be a launch
        check_index("query_offsets.diff()", query_offsets.diff(), 0, max_query + 1)
    check_index("lengths", lengths, 0, max_blocks * block_size + 1)

    out = torch.zeros_like(q)
    launch(
        "paged_prefill", device, q, k_cache, v_cache, block_table, query_offsets, lengths, sinks,
        k_scale, v_scale, out, sequences, max_query, heads, kv_heads, dim, block_size, max_blocks,
        window, scale, soft_cap, kind,
    )  # fmt: skip
    return out
