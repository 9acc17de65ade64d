// Attention of prompt chunks over the paged KV cache.
#pragma once

#include <cstdint>

#include "kernels.h"

extern "C" {

// The chunks of all sequences lie one after another: q and out are [tokens][heads][head_dim], and
// sequence s has the tokens query_offsets[s] to query_offsets[s + 1], none of them at most. Its
// keys and values, those of the chunk included, are the first lengths[s] of block_table[s]; caches
// are as in kv_cache.h, head_dim a multiple of 8 up to 256 (CUDA: 64, 96, 128, 192 or 256). Query
// i of c sees the keys up to lengths[s] - c + i, of these the last `window`, all if that is 0; one
// that sees none gets zeros. With x = scale * k_scale[head] * q . k a logit is x, or
// soft_cap * tanh(x / soft_cap) if soft_cap > 0; sinks[heads] are logits without a value. k_scale
// and v_scale [kv_heads] and sinks may be null.
//
// max_query bounds the chunks' tokens: what a chunk has beyond may not be computed. CUDA: q and out
// are FP16, q, out and the caches start at a multiple of 16 bytes, and a cache has fewer than 2^31
// tokens by KV heads.
int volta_paged_prefill_cpu(const float* q, const void* k_cache, const void* v_cache,
                            const int32_t* block_table, const int32_t* query_offsets,
                            const int32_t* lengths, const float* sinks, const float* k_scale,
                            const float* v_scale, float* out, int64_t sequences, int64_t max_query,
                            int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                            int64_t max_blocks, int64_t window, float scale, float soft_cap,
                            int kv_type, int threads);

int volta_paged_prefill_cuda(const void* q, const void* k_cache, const void* v_cache,
                             const int32_t* block_table, const int32_t* query_offsets,
                             const int32_t* lengths, const float* sinks, const float* k_scale,
                             const float* v_scale, void* out, int64_t sequences, int64_t max_query,
                             int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                             int64_t max_blocks, int64_t window, float scale, float soft_cap,
                             int kv_type, cudaStream_t stream);

}  // extern "C"
