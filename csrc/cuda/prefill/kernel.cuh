// Prefill attention in one pass over the keys. A block works on rows of one KV head, each warp on
// its own, and takes a tile of keys at a time: while the keys in shared memory are multiplied the
// tile's values are on their way, and the next keys during the values' product.
#pragma once

#include "../../prefill.h"
#include "steps.cuh"

namespace volta {
namespace prefill {

constexpr int kNoWindow = 1 << 30;
constexpr int kNowhere = -1;  // the position of a row beyond the end, which sees no key

struct Arguments {
  const __half* q;
  const void* k_cache;
  const void* v_cache;
  const int32_t* block_table;
  const int32_t* query_offsets;
  const int32_t* lengths;
  const float* sinks;
  const float* k_scale;
  const float* v_scale;
  __half* out;
  int kv_heads, group, block_size, max_blocks, window;
  float scale, soft_cap;  // see scale_logits
};

// The results go over the warp's rows of the query tile, which it needs no more.
template <typename T>
__device__ __forceinline__ void place_results(const Arguments& p, const Rows<T>& rows,
                                              const Sums<T>& out, int warp_row, int lane,
                                              uint4* q_tile) {
  const int kv_head = blockIdx.y;
  const float scale = p.v_scale ? p.v_scale[kv_head] : 1;
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = rows.sum[r][h];
      sum += __shfl_xor_sync(kAll, sum, 2);
      sum += __shfl_xor_sync(kAll, sum, 8);
      const int row = r * kMmaTile + mma_d_row(lane, 2 * h);
      if (p.sinks) {
        const float sink = p.sinks[kv_head * p.group + (warp_row + row) % p.group];
        sum += exp2_fast(sink * kLog2E - rows.highest[r][h]);
      }
      const float factor = sum == 0 ? 0 : __fdividef(scale, sum);  // zero: a query that sees no key
#pragma unroll
      for (int d = 0; d < T::kDim / kMmaTile; ++d)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* of = out[r][d].at + 2 * h + 4 * i;
          const int chunk = d / 2 * 4 + mma_d_column(lane, 4 * i) / 4;
          const int pair = d % 2 * 2 + (lane >> 1 & 1);
          reinterpret_cast<__half2*>(q_tile + chunk * T::kRows + row)[pair] =
              __floats2half2_rn(of[0] * factor, of[1] * factor);
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm) paged_prefill(const Arguments p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int kv_head = blockIdx.y, group = p.group;
  const int first_token = p.query_offsets[blockIdx.z];
  const int queries = p.query_offsets[blockIdx.z + 1] - first_token;
  const int rows_in_all = queries * group;
  // The last rows see the most keys, so they start first.
  const int first_row = (gridDim.x - 1 - blockIdx.x) * T::kRows;
  if (first_row >= rows_in_all) return;

  const int context = p.lengths[blockIdx.z] - queries;  // tokens before the chunk
  const int* table = p.block_table + static_cast<int64_t>(blockIdx.z) * p.max_blocks;
  const int last_row = min(first_row + T::kRows, rows_in_all) - 1;
  const int begin = max(0, context + first_row / group - p.window + 1);
  const int end = min(context + last_row / group + 1, p.max_blocks * p.block_size);

  extern __shared__ uint4 shared[];
  uint4* k_tile = shared;
  uint4* v_tile = k_tile + T::kChunks * T::kKeys;
  uint4* q_tile = v_tile + T::kChunks * T::kKeys + warp * T::kWarpRows;  // the warp's rows
  const int warp_row = first_row + warp * T::kWarpRows;

  // Row `row` of the warp as it lies in q and out, or null.
  const auto row_at = [&](auto* tensor, int row) {
    row += warp_row;
    const int64_t token = first_token + row / group;
    const int64_t at = (token * p.kv_heads + kv_head) * group + row % group;
    return row <= last_row ? tensor + at * T::kDim : nullptr;
  };
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r) {
    const int row = r * kMmaTile + lane % kMmaTile;
    const uint4* from = reinterpret_cast<const uint4*>(row_at(p.q, row));
#pragma unroll
    for (int chunk = lane / kMmaTile; chunk < T::kChunks; chunk += 2)
      q_tile[chunk * T::kRows + row] = from ? __ldg(from + chunk) : make_uint4(0, 0, 0, 0);
  }
  __syncwarp();

  Rows<T> rows;
  int last = kNowhere;
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_row + r * kMmaTile + mma_d_row(lane, 2 * h);
      rows.position[r][h] = row <= last_row ? context + row / group : kNowhere;
      last = max(last, rows.position[r][h]);
      rows.highest[r][h] = kLowest;
      rows.sum[r][h] = 0;
    }
  const int first = rows.position[0][0];
  const float scale = p.k_scale ? p.scale * p.k_scale[kv_head] : p.scale;

  // Which row of the caches the lane loads for the tile that starts at `key`; tokens that no row
  // here sees are not looked up, be they beyond the end or given up behind a window.
  const auto cache_row = [&](int key) -> int {
    const int token = key + Share<T>::token(lane, warp);
    if (token < begin || token >= end) return -1;
    const int block = __ldg(table + token / p.block_size);
    return (block * p.kv_heads + kv_head) * p.block_size + token % p.block_size;
  };

  Sums<T> out = {};
  int key = begin / T::kKeys * T::kKeys;
  Share<T> share;
  int row = cache_row(key);
  share.fetch(p.k_cache, row, lane, warp);
  for (; key < end; key += T::kKeys) {
    // Voted, so that the compiler, too, knows that a warp stays together.
    const bool sees =
        __any_sync(kAll, last >= key) && __any_sync(kAll, first - p.window < key + T::kKeys - 1);
    Logits<T> s = {};
    share.place(k_tile, lane, warp);
    __syncthreads();
    share.fetch(p.v_cache, row, lane, warp);
    if (sees) {
      multiply_keys<T>(q_tile, k_tile, lane, s);
      scale_logits<T>(s, scale, p.soft_cap);
      if (__any_sync(kAll, first < key + T::kKeys - 1 || last - p.window >= key))
        mask_logits<T>(s, rows, key, p.window, lane);
      softmax<T>(s, rows, out);
    }
    share.place(v_tile, lane, warp);
    __syncthreads();
    row = cache_row(key + T::kKeys);
    share.fetch(p.k_cache, row, lane, warp);
    if (sees) multiply_values<T>(s, v_tile, lane, out);
  }

  place_results<T>(p, rows, out, warp_row, lane, q_tile);
  __syncwarp();
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r) {
    const int row = r * kMmaTile + lane % kMmaTile;
    uint4* to = reinterpret_cast<uint4*>(row_at(p.out, row));
    if (!to) continue;
#pragma unroll
    for (int chunk = lane / kMmaTile; chunk < T::kChunks; chunk += 2)
      to[chunk] = q_tile[chunk * T::kRows + row];
  }
}

}  // namespace prefill
}  // namespace volta
