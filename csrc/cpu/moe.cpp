// Routing, sorting and combining on the CPU, by the element functions the CUDA kernels use.
#include <algorithm>
#include <array>

#include "../moe_math.h"
#include "../moe_sizes.h"
#include "thread_pool.h"

namespace volta {
namespace {

using Logits = std::array<float, kMoeMaxExperts>;
using Orders = std::array<int32_t, kMoeMaxExperts>;

void load(const void* logits, int half_logits, int64_t begin, int count, Logits& row) {
  if (half_logits) {
    const auto* from = static_cast<const uint16_t*>(logits) + begin;
    std::transform(from, from + count, row.begin(), half_bits_to_float);
  } else {
    std::copy_n(static_cast<const float*>(logits) + begin, count, row.begin());
  }
}

// Takes the experts outside of the top_groups best groups.
void limit_groups(const MoeRouting& r, Orders& order) {
  const int size = r.experts / r.groups;
  std::array<int32_t, kMoeMaxGroups> group;
  for (int g = 0; g < r.groups; ++g) {
    int32_t best = kMoeTaken, second = kMoeTaken;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(best, order[e]));
      best = std::max(best, order[e]);
    }
    group[g] = moe_order(moe_choice(best) + moe_choice(second));
  }
  for (int g = 0; g < r.groups; ++g) {
    int better = 0;
    for (int other = 0; other < r.groups; ++other)
      better += group[other] > group[g] || (group[other] == group[g] && other < g);
    if (better >= r.top_groups)
      std::fill(order.begin() + g * size, order.begin() + (g + 1) * size, kMoeTaken);
  }
}

void route_token(const MoeRouting& r, const Logits& logits, const float* bias, float* weights,
                 int32_t* ids) {
  float max = -INFINITY, sum = 0;
  if (r.scoring == kMoeSoftmax) {
    for (int e = 0; e < r.experts; ++e) max = fmaxf(max, logits[e]);
    for (int e = 0; e < r.experts; ++e) sum += expf(logits[e] - max);
  }
  const bool by_logit = moe_chooses_by_logit(r, bias);
  Orders order;
  for (int e = 0; e < r.experts; ++e) {
    const float score = by_logit ? logits[e] : moe_score(r.scoring, logits[e], max, sum);
    order[e] = moe_order(bias ? score + bias[e] : score);
  }
  if (r.groups) limit_groups(r, order);

  for (int slot = 0; slot < r.top_k; ++slot) {
    const auto best = std::max_element(order.begin(), order.begin() + r.experts);  // the first one
    ids[slot] = static_cast<int32_t>(best - order.begin());
    *best = kMoeTaken;
  }
  if (moe_softmax_of_chosen(r)) {
    max = -INFINITY;
    for (int slot = 0; slot < r.top_k; ++slot) max = fmaxf(max, logits[ids[slot]]);
    sum = 1;
  }
  float total = 0;
  for (int slot = 0; slot < r.top_k; ++slot) {
    weights[slot] = moe_score(r.scoring, logits[ids[slot]], max, sum);
    total += weights[slot];
  }
  const float divisor = r.renormalize ? total + kMoeSmallestSum : 1.0f;
  for (int slot = 0; slot < r.top_k; ++slot) weights[slot] = weights[slot] / divisor * r.scale;
}

}  // namespace
}  // namespace volta

int volta_moe_route_cpu(const void* logits, int half_logits, const float* bias, float* weights,
                        int32_t* ids, int64_t tokens, int64_t experts, int64_t top_k, int scoring,
                        int renormalize, int64_t groups, int64_t top_groups, float scale,
                        int threads) {
  using namespace volta;
  if (!moe_scoring_known(scoring)) return kBadFormat;
  if (!moe_route_takes(tokens, experts, top_k, groups, top_groups)) return kBadShape;
  const MoeRouting r = {
      static_cast<int>(experts), static_cast<int>(top_k),      scoring, renormalize,
      static_cast<int>(groups),  static_cast<int>(top_groups), scale};
  parallel_for(tokens, threads, [&](int64_t begin, int64_t end) {
    Logits row;
    for (int64_t t = begin; t < end; ++t) {
      load(logits, half_logits, t * experts, r.experts, row);
      route_token(r, row, bias, weights + t * top_k, ids + t * top_k);
    }
  });
  return kOk;
}

int volta_moe_permute_cpu(const int32_t* ids, int32_t* sorted, int32_t* offsets,
                          int32_t* tile_expert, int32_t* tile_row, int32_t*, int64_t assignments,
                          int64_t first, int64_t count, int64_t tile, int64_t tiles, int) {
  using namespace volta;
  if (!moe_permute_takes(assignments, first, count, tile, tiles)) return kBadShape;
  const auto local = [&](int64_t a) {
    return moe_local_expert(ids[a], static_cast<int>(first), static_cast<int>(count));
  };
  std::array<int32_t, kMoeMaxExperts> next{};  // how many rows, then where the next one goes
  for (int64_t a = 0; a < assignments; ++a)
    if (const int e = local(a); e >= 0) ++next[e];

  int32_t rows = 0, used = 0;
  for (int e = 0; e < count; ++e) {
    const int32_t begin = rows;
    rows += next[e];
    offsets[e] = next[e] = begin;
    for (int64_t row = begin; row < rows; row += tile) {
      tile_expert[used] = e;
      tile_row[used++] = static_cast<int32_t>(row);
    }
  }
  offsets[count] = rows;
  std::fill(tile_expert + used, tile_expert + tiles, -1);
  std::fill(tile_row + used, tile_row + tiles, -1);

  for (int64_t a = 0; a < assignments; ++a)
    if (const int e = local(a); e >= 0) sorted[next[e]++] = static_cast<int32_t>(a);
  std::fill(sorted + rows, sorted + assignments, -1);
  return kOk;
}

int volta_moe_combine_cpu(const void* y, const float* weights, const int32_t* ids,
                          const void* shared, void* out, int64_t tokens, int64_t top_k,
                          int64_t width, int64_t first, int64_t count, int threads) {
  using namespace volta;
  if (!moe_combine_takes(tokens, top_k, width, first, count)) return kBadShape;
  // Each range is whole blocks of columns, so that few tokens too use all threads and a block of
  // the sum stays in the first cache.
  constexpr int64_t kBlock = 1024;
  const int64_t blocks = (width + kBlock - 1) / kBlock;
  parallel_for(tokens * blocks, threads, [&](int64_t begin, int64_t end) {
    float sum[kBlock];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / blocks, column = i % blocks * kBlock;
      const int64_t n = std::min(kBlock, width - column);
      std::fill(sum, sum + n, 0.0f);
      for (int64_t a = t * top_k; a < (t + 1) * top_k; ++a) {
        if (moe_local_expert(ids[a], static_cast<int>(first), static_cast<int>(count)) < 0)
          continue;
        const float* row = static_cast<const float*>(y) + a * width + column;
        for (int64_t c = 0; c < n; ++c) sum[c] += weights[a] * row[c];
      }
      const int64_t at = t * width + column;
      if (shared)
        for (int64_t c = 0; c < n; ++c) sum[c] += static_cast<const float*>(shared)[at + c];
      std::copy(sum, sum + n, static_cast<float*>(out) + at);
    }
  });
  return kOk;
}
