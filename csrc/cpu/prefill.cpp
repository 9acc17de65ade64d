// Prefill attention on the CPU: a block of rows (a query of one head each) passes over the keys
// once, so that a key and its value are decoded once for all of them.
#include "../prefill.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../kv_cache.h"
#include "thread_pool.h"

namespace volta {
namespace {

constexpr int kRows = 32;
constexpr int kMaxDim = 256;
constexpr int kLanes = 8;  // partial sums of a product, for the compiler's vectors
constexpr float kLowest = std::numeric_limits<float>::lowest();

struct Prefill {
  const float* q;
  const void* k_cache;
  const void* v_cache;
  const int32_t* block_table;
  const int32_t* query_offsets;
  const int32_t* lengths;
  const float* sinks;
  const float* k_scale;
  const float* v_scale;
  float* out;
  int64_t kv_heads, group, head_dim, block_size, max_blocks, window;
  float scale, soft_cap;
};

struct Row {
  const float* q;
  float* out;  // sum of exp(logit - highest) * value, until it is divided
  int64_t position;
  float highest, sum;
};

float dot(const float* a, const float* b, int64_t n) {
  float sum[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) sum[j] += a[i + j] * b[i + j];
  float all = 0;
  for (const float part : sum) all += part;
  return all;
}

void add_value(Row& row, float logit, const float* value, int64_t n) {
  if (logit > row.highest) {
    const float shrink = std::exp(row.highest - logit);
    for (int64_t i = 0; i < n; ++i) row.out[i] *= shrink;
    row.sum *= shrink;
    row.highest = logit;
  }
  const float weight = std::exp(logit - row.highest);
  for (int64_t i = 0; i < n; ++i) row.out[i] += weight * value[i];
  row.sum += weight;
}

template <typename Code>
void decode_row(const void* cache, int64_t row, int64_t n, float* to) {
  const Code* from = static_cast<const Code*>(cache) + row * n;
  for (int64_t i = 0; i < n; ++i) to[i] = kv_decode(from[i]);
}

template <typename Code>
void attend(const Prefill& p, int64_t sequence, int64_t kv_head, int64_t first_row) {
  const int64_t first_token = p.query_offsets[sequence];
  const int64_t queries = p.query_offsets[sequence + 1] - first_token;
  const int64_t context = p.lengths[sequence] - queries;
  const int64_t n = p.head_dim;
  const int count = static_cast<int>(std::clamp<int64_t>(queries * p.group - first_row, 0, kRows));
  if (count == 0) return;

  Row rows[kRows];
  for (int r = 0; r < count; ++r) {
    const int64_t query = (first_row + r) / p.group;
    const int64_t head = kv_head * p.group + (first_row + r) % p.group;
    const int64_t at = ((first_token + query) * p.kv_heads * p.group + head) * n;
    rows[r] = {p.q + at, p.out + at, context + query, kLowest, 0.0f};
    std::fill_n(rows[r].out, n, 0.0f);
  }

  const float scale = p.k_scale ? p.scale * p.k_scale[kv_head] : p.scale;
  const int64_t window = p.window ? p.window : std::numeric_limits<int32_t>::max();
  const int64_t begin = std::max<int64_t>(0, rows[0].position - window + 1);
  const int64_t end = std::min(rows[count - 1].position + 1, p.max_blocks * p.block_size);
  for (int64_t key = begin; key < end; ++key) {
    const int64_t block = p.block_table[sequence * p.max_blocks + key / p.block_size];
    const int64_t at = (block * p.kv_heads + kv_head) * p.block_size + key % p.block_size;
    float k[kMaxDim], v[kMaxDim];
    decode_row<Code>(p.k_cache, at, n, k);
    decode_row<Code>(p.v_cache, at, n, v);
    for (int r = 0; r < count; ++r) {
      if (key > rows[r].position || key <= rows[r].position - window) continue;
      float logit = scale * dot(rows[r].q, k, n);
      if (p.soft_cap > 0) logit = p.soft_cap * std::tanh(logit / p.soft_cap);
      add_value(rows[r], logit, v, n);
    }
  }

  const float v_scale = p.v_scale ? p.v_scale[kv_head] : 1.0f;
  for (int r = 0; r < count; ++r) {
    const int64_t head = kv_head * p.group + (first_row + r) % p.group;
    const float sum = rows[r].sum + (p.sinks ? std::exp(p.sinks[head] - rows[r].highest) : 0.0f);
    const float factor = sum == 0 ? 0.0f : v_scale / sum;
    for (int64_t i = 0; i < n; ++i) rows[r].out[i] *= factor;
  }
}

}  // namespace
}  // namespace volta

int volta_paged_prefill_cpu(const float* q, const void* k_cache, const void* v_cache,
                            const int32_t* block_table, const int32_t* query_offsets,
                            const int32_t* lengths, const float* sinks, const float* k_scale,
                            const float* v_scale, float* out, int64_t sequences, int64_t max_query,
                            int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                            int64_t max_blocks, int64_t window, float scale, float soft_cap,
                            int kv_type, int threads) {
  using namespace volta;
  if (sequences < 1 || max_query < 1 || kv_heads < 1 || heads < 1 || heads % kv_heads != 0 ||
      head_dim < 1 || head_dim > kMaxDim || head_dim % kLanes != 0 || block_size < 1 ||
      block_size % kKvBlockMultiple != 0 || max_blocks < 1 || window < 0)
    return kBadShape;
  const int64_t group = heads / kv_heads;
  const Prefill p = {q,        k_cache,    v_cache,    block_table, query_offsets, lengths,
                     sinks,    k_scale,    v_scale,    out,         kv_heads,      group,
                     head_dim, block_size, max_blocks, window,      scale,         soft_cap};
  const int64_t row_blocks = (max_query * group + kRows - 1) / kRows;
  return with_kv_type(kv_type, kBadFormat, [&](auto code) -> int {
    parallel_for(sequences * kv_heads * row_blocks, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        attend<decltype(code)>(p, i / row_blocks / kv_heads, i / row_blocks % kv_heads,
                               i % row_blocks * kRows);
    });
    return kOk;
  });
}
