// Prefill attention in one pass over the keys, with running maxima and sums in FP32.
//
// For each tile of keys a warp multiplies its queries with the keys (S = Q K^T), turns S into
// probabilities relative to the highest logit so far, and adds their product with the values to its
// sums. Keys are in shared memory while the values are on their way, and the other way round.
#pragma once

#include "../../prefill.h"
#include "tile.cuh"

namespace volta {
namespace prefill {

constexpr uint32_t kAll = 0xffffffffu;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -3.4e38f;  // finite, so that its difference to -infinity is no NaN
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

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a lane knows of its rows, two of each 16: which elements of an MmaSum these are, see there.
template <typename T>
struct Rows {
  int position[T::kRowTiles][2];   // of the query, so also the last key it sees
  float highest[T::kRowTiles][2];  // logit so far, times log2(e)
  float sum[T::kRowTiles][2];      // of the probabilities of this lane's columns
};

template <typename T>
using Logits = MmaSum[T::kRowTiles][T::kKeyTiles];
template <typename T>
using Sums = MmaSum[T::kRowTiles][T::kDim / kMmaTile];

template <typename T>
__device__ __forceinline__ void multiply_keys(const uint4* q_tile, const uint4* k_tile, int lane,
                                              Logits<T>& s) {
  const uint4* a = q_tile + mma_a_row(lane);
  const uint4* b = k_tile + mma_b_column(lane);
#pragma unroll 4  // all of them cost registers that there are not
  for (int chunk = 0; chunk < T::kChunks; ++chunk) {
    uint4 queries[T::kRowTiles], keys[T::kKeyTiles];
#pragma unroll
    for (int r = 0; r < T::kRowTiles; ++r) queries[r] = a[chunk * T::kRows + r * kMmaTile];
#pragma unroll
    for (int k = 0; k < T::kKeyTiles; ++k) keys[k] = b[chunk * T::kKeys + k * kMmaTile];
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
        for (int k = 0; k < T::kKeyTiles; ++k)
          mma_by_columns(s[r][k], mma_factor(queries[r], step), mma_factor(keys[k], step));
  }
}

// Products to logits times log2(e): x scale, or, as tanh(y) = 1 - 2 / (exp(2 y) + 1), a soft_cap
// above zero times that with 2 ** (x scale) for the exponential.
template <typename T>
__device__ __forceinline__ void scale_logits(Logits<T>& s, float scale, float soft_cap) {
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int k = 0; k < T::kKeyTiles; ++k)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = s[r][k].at[i];
        x *= scale;
        if (soft_cap > 0) x = soft_cap * (1 - __fdividef(2, exp2_fast(x) + 1));
      }
}

template <typename T>
__device__ __forceinline__ void mask_logits(Logits<T>& s, const Rows<T>& rows, int first_key,
                                            int window, int lane) {
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int k = 0; k < T::kKeyTiles; ++k)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int behind =  // from the key to the query
            rows.position[r][i / 2 % 2] - (first_key + k * kMmaTile + mma_d_column(lane, i));
        if (behind < 0 || behind >= window) s[r][k].at[i] = -INFINITY;
      }
}

// Logits to probabilities; what was summed so far is brought to the new maxima.
template <typename T>
__device__ __forceinline__ void softmax(Logits<T>& s, Rows<T>& rows, Sums<T>& out) {
  float shrink[T::kRowTiles][2];
  bool shrinks = false;
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float highest = rows.highest[r][h];
#pragma unroll
      for (int k = 0; k < T::kKeyTiles; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) highest = fmaxf(highest, s[r][k].at[2 * h + i % 2 + i / 2 * 4]);
      // The lanes that have the row's other columns.
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 2));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 8));

      shrink[r][h] = exp2_fast(rows.highest[r][h] - highest);
      shrinks = shrinks || shrink[r][h] != 1;
      rows.highest[r][h] = highest;
      float sum = 0;
#pragma unroll
      for (int k = 0; k < T::kKeyTiles; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = s[r][k].at[2 * h + i % 2 + i / 2 * 4];
          x = exp2_fast(x - highest);
          sum += x;
        }
      rows.sum[r][h] = rows.sum[r][h] * shrink[r][h] + sum;
    }
  if (!__any_sync(kAll, shrinks)) return;
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int d = 0; d < T::kDim / kMmaTile; ++d)
#pragma unroll
      for (int i = 0; i < 8; ++i) out[r][d].at[i] *= shrink[r][i / 2 % 2];
}

// A lane loads 8 values of a key at once, for two products: columns 4 c .. 4 c + 3 of product
// 2 d + u are the values 32 d + 8 c + 4 u and on.
template <typename T>
__device__ __forceinline__ void multiply_values(const Logits<T>& s, const uint4* v_tile, int lane,
                                                Sums<T>& out) {
  const uint4* b = v_tile + mma_b_first_column(lane) / 4 * T::kKeys + mma_b_row(lane);
#pragma unroll
  for (int k = 0; k < 2 * T::kKeyTiles; ++k) {
    MmaFactor a[T::kRowTiles][2];  // eight keys: two steps
#pragma unroll
    for (int r = 0; r < T::kRowTiles; ++r) mma_d_to_a(s[r][k / 2], k % 2, lane, a[r]);
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int d = 0; d < T::kDim / 32; ++d) {
        const uint4 values = b[4 * d * T::kKeys + (2 * k + step) * kMmaStep];
#pragma unroll
        for (int u = 0; u < 2; ++u)
#pragma unroll
          for (int r = 0; r < T::kRowTiles; ++r)
            mma_by_rows(out[r][2 * d + u], a[r][step], mma_factor(values, u));
      }
  }
}

// The results over the warp's rows of the query tile, which it needs no more.
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
