// Writing, copying and moving the blocks of a paged KV cache; kv_cache.h has their layout.
#pragma once

#include <cstdint>

#include "kernels.h"

extern "C" {

// k, v [tokens][kv_heads][head_dim] go to the slots block * block_size + offset of the two caches;
// a negative slot skips its token. Of tokens with one slot any one is stored. k_scale and v_scale
// [kv_heads] belong to INT8, which divides by them, and are null for other types. CUDA: k and v are
// FP16, head_dim is a multiple of 16.
int volta_kv_cache_write_cpu(const float* k, const float* v, void* k_cache, void* v_cache,
                             const int64_t* slots, const float* k_scale, const float* v_scale,
                             int64_t tokens, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                             int kv_type, int threads);
int volta_kv_cache_write_cuda(const void* k, const void* v, void* k_cache, void* v_cache,
                              const int64_t* slots, const float* k_scale, const float* v_scale,
                              int64_t tokens, int64_t kv_heads, int64_t head_dim,
                              int64_t block_size, int kv_type, cudaStream_t stream);

// Copies whole blocks inside both caches: pairs [count][2] of source and destination, in no order,
// so no destination may be in another pair. A pair with a negative number is skipped. CUDA:
// block_bytes is a multiple of 16.
int volta_kv_cache_copy_cpu(void* k_cache, void* v_cache, const int64_t* pairs, int64_t count,
                            int64_t block_bytes, int threads);
int volta_kv_cache_copy_cuda(void* k_cache, void* v_cache, const int64_t* pairs, int64_t count,
                             int64_t block_bytes, cudaStream_t stream);

// Copies blocks of one cache to another one, of which either may be the host's; pairs as above, but
// always in host memory and read during the call: a captured graph repeats these very copies.
// Pairs in sequence on both sides are one copy. Host memory should be pinned, or the copy waits.
int volta_kv_cache_swap_cpu(const void* source, void* destination, const int64_t* pairs,
                            int64_t count, int64_t block_bytes, int threads);
int volta_kv_cache_swap_cuda(const void* source, void* destination, const int64_t* pairs,
                             int64_t count, int64_t block_bytes, cudaStream_t stream);

}  // extern "C"
