// Decode attention in FP32: each row of K and V is decoded once for the query heads that share it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../attention_math.h"
#include "../kernels.h"
#include "../kv_cache.h"
#include "thread_pool.h"

namespace volta {
namespace {

constexpr int kMaxDim = 256;
constexpr int kMaxRows = 16;  // query heads at a time

struct Decode {
  const float* q;
  const void *k_cache, *v_cache;
  const int32_t *block_table, *lengths;
  const float *sinks, *k_scale, *v_scale;
  float* out;
  int64_t heads, kv_heads, head_dim, block_size, max_blocks, window;
  float scale, soft_cap;
};

template <typename Code>
void decode_row(const void* cache, int64_t row, int64_t dim, float scale, float* out) {
  const Code* const codes = static_cast<const Code*>(cache) + row * dim;
  for (int64_t i = 0; i < dim; ++i) out[i] = kv_decode(codes[i]) * scale;
}

// In eight sums, so that a compiler may take them together.
float dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// `rows` query heads from `head` on, all of one KV head. out holds the running sums.
template <typename Code>
void decode_heads(const Decode& a, int64_t sequence, int64_t head, int64_t kv_head, int rows) {
  const int64_t dim = a.head_dim;
  const float* const q = a.q + (sequence * a.heads + head) * dim;
  float* const out = a.out + (sequence * a.heads + head) * dim;
  const int64_t length = std::clamp<int64_t>(a.lengths[sequence], 0, a.max_blocks * a.block_size);
  const float k_scale = a.scale * (a.k_scale ? a.k_scale[kv_head] : 1.0f);
  const float v_scale = a.v_scale ? a.v_scale[kv_head] : 1.0f;

  float max[kMaxRows], sum[kMaxRows];
  for (int r = 0; r < rows; ++r) {
    max[r] = a.sinks ? a.sinks[head + r] : -std::numeric_limits<float>::infinity();
    sum[r] = a.sinks ? 1.0f : 0.0f;
  }
  std::fill_n(out, rows * dim, 0.0f);

  for (int64_t t = first_visible(length, a.window); t < length; ++t) {
    const int64_t block = a.block_table[sequence * a.max_blocks + t / a.block_size];
    const int64_t row = (block * a.kv_heads + kv_head) * a.block_size + t % a.block_size;
    float k[kMaxDim], v[kMaxDim];
    decode_row<Code>(a.k_cache, row, dim, k_scale, k);
    decode_row<Code>(a.v_cache, row, dim, v_scale, v);
    for (int r = 0; r < rows; ++r) {
      const float logit = capped(dot(q + r * dim, k, dim), a.soft_cap);
      if (logit > max[r]) {
        const float shrink = std::exp(max[r] - logit);
        max[r] = logit;
        sum[r] *= shrink;
        for (int64_t i = 0; i < dim; ++i) out[r * dim + i] *= shrink;
      }
      const float p = std::exp(logit - max[r]);
      sum[r] += p;
      for (int64_t i = 0; i < dim; ++i) out[r * dim + i] += p * v[i];
    }
  }
  for (int r = 0; r < rows; ++r)
    if (sum[r] > 0)
      for (int64_t i = 0; i < dim; ++i) out[r * dim + i] /= sum[r];
}

}  // namespace
}  // namespace volta

int volta_paged_decode_cpu(const float* q, const void* k_cache, const void* v_cache,
                           const int32_t* block_table, const int32_t* lengths, const float* sinks,
                           const float* k_scale, const float* v_scale, float* out, float*,
                           int64_t sequences, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           int64_t block_size, int64_t max_blocks, int64_t window, float scale,
                           float soft_cap, int64_t, int64_t, int kv_type, int threads) {
  using namespace volta;
  if (sequences < 0 || kv_heads < 1 || heads < kv_heads || heads % kv_heads != 0 || head_dim < 1 ||
      head_dim > kMaxDim || block_size < 1 || max_blocks < 0 || window < 0)
    return kBadShape;
  const Decode a{q,     k_cache,  v_cache,  block_table, lengths,    sinks,  k_scale, v_scale, out,
                 heads, kv_heads, head_dim, block_size,  max_blocks, window, scale,   soft_cap};
  const int64_t group = heads / kv_heads;
  return with_kv_type(kv_type, kBadFormat, [&](auto code) {
    parallel_for(sequences * kv_heads, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t first = 0; first < group; first += kMaxRows)
          decode_heads<decltype(code)>(
              a, i / kv_heads, i % kv_heads * group + first, i % kv_heads,
              static_cast<int>(std::min<int64_t>(kMaxRows, group - first)));
    });
    return kOk;
  });
}
