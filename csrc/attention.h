// Attention of one new token a sequence over the paged KV cache; kv_cache.h has its layout.
#pragma once

#include <cstdint>

#include "kernels.h"

extern "C" {

// out[s][h] = sum over t of p[t] v[t] for q, out [sequences][heads][head_dim], where t runs over
// the tokens of sequence s: the last `window` (0: all) of lengths[s], which counts the present one;
// none gives zeros. Query heads share KV heads in groups of heads / kv_heads. p is the softmax of
// scale * q k[t], which a soft_cap > 0 bends to soft_cap * tanh(. / soft_cap); sinks [heads], or
// null, are logits of a further token without a value. block_table is [sequences][max_blocks]; what
// lies beyond a length is not used, a length beyond max_blocks * block_size counts as that. k_scale
// and v_scale [kv_heads] belong to INT8.
//
// On CUDA head_dim is 64, 96, 128, 192 or 256, up to 256 on the CPU. There each sequence's tokens
// are shared among up to `splits` blocks, whose sums lie in partials
// [sequences][heads][splits][head_dim + 4] in between. `fill` splits of every sequence fill the
// GPU: a length gets so many, unless each had less than kDecodeMinTokens, or more where each had
// beyond kDecodeMaxTokens. The CPU uses none of the three.
int volta_paged_decode_cpu(const float* q, const void* k_cache, const void* v_cache,
                           const int32_t* block_table, const int32_t* lengths, const float* sinks,
                           const float* k_scale, const float* v_scale, float* out, float* partials,
                           int64_t sequences, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           int64_t block_size, int64_t max_blocks, int64_t window, float scale,
                           float soft_cap, int64_t fill, int64_t splits, int kv_type, int threads);
int volta_paged_decode_cuda(const void* q, const void* k_cache, const void* v_cache,
                            const int32_t* block_table, const int32_t* lengths, const float* sinks,
                            const float* k_scale, const float* v_scale, void* out, float* partials,
                            int64_t sequences, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            int64_t block_size, int64_t max_blocks, int64_t window, float scale,
                            float soft_cap, int64_t fill, int64_t splits, int kv_type,
                            cudaStream_t stream);

}  // extern "C"
