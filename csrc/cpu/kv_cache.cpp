// The paged KV cache in host memory.
#include "../kv_cache.h"

#include <cstring>

#include "../kernels.h"
#include "thread_pool.h"

namespace volta {
namespace {

// One token of one cache.
template <typename Code>
void write_token(const float* x, void* cache, const float* scale, int64_t slot, int64_t kv_heads,
                 int64_t head_dim, int64_t block_size) {
  for (int64_t head = 0; head < kv_heads; ++head) {
    const int64_t row = (slot / block_size * kv_heads + head) * block_size + slot % block_size;
    Code* const to = static_cast<Code*>(cache) + row * head_dim;
    for (int64_t i = 0; i < head_dim; ++i)
      kv_encode(x[head * head_dim + i], scale ? scale[head] : 1.0f, to[i]);
  }
}

void copy_block(const void* from, void* to, const int64_t* pair, int64_t bytes) {
  if (pair[0] < 0 || pair[1] < 0 || (from == to && pair[0] == pair[1])) return;
  std::memcpy(static_cast<char*>(to) + pair[1] * bytes,
              static_cast<const char*>(from) + pair[0] * bytes, static_cast<size_t>(bytes));
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_kv_cache_write_cpu(const float* k, const float* v, void* k_cache, void* v_cache,
                             const int64_t* slots, const float* k_scale, const float* v_scale,
                             int64_t tokens, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                             int kv_type, int threads) {
  if (tokens < 0 || kv_heads < 1 || head_dim < 1 || block_size < 1) return kBadShape;
  return with_kv_type(kv_type, kBadFormat, [&](auto code) {
    using Code = decltype(code);
    parallel_for(tokens, threads, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        if (slots[t] < 0) continue;
        const int64_t at = t * kv_heads * head_dim;
        write_token<Code>(k + at, k_cache, k_scale, slots[t], kv_heads, head_dim, block_size);
        write_token<Code>(v + at, v_cache, v_scale, slots[t], kv_heads, head_dim, block_size);
      }
    });
    return kOk;
  });
}

int volta_kv_cache_copy_cpu(void* k_cache, void* v_cache, const int64_t* pairs, int64_t count,
                            int64_t block_bytes, int threads) {
  if (count < 0 || block_bytes < 1) return kBadShape;
  parallel_for(count, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      copy_block(k_cache, k_cache, pairs + 2 * i, block_bytes);
      copy_block(v_cache, v_cache, pairs + 2 * i, block_bytes);
    }
  });
  return kOk;
}

int volta_kv_cache_swap_cpu(const void* source, void* destination, const int64_t* pairs,
                            int64_t count, int64_t block_bytes, int threads) {
  if (count < 0 || block_bytes < 1) return kBadShape;
  parallel_for(count, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      copy_block(source, destination, pairs + 2 * i, block_bytes);
  });
  return kOk;
}
