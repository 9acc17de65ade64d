// What a warp does with a tile of keys and values: S = Q K^T, the softmax over S so far, and its
// product with the values.
#pragma once

#include "tile.cuh"

namespace volta {
namespace prefill {

constexpr uint32_t kAll = 0xffffffffu;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -3.4e38f;  // finite, so that its difference to -infinity is no NaN

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A lane has two rows of each 16, elements 0, 1, 4, 5 and 2, 3, 6, 7 of every MmaSum.
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
#pragma unroll 4  // loads of more chunks ahead would spill
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

// Products to logits times log2(e), of which the launcher put what is constant into scale and
// soft_cap: x scale, or with a soft cap soft_cap tanh(y), where 2 ** (x scale) is exp(2 y).
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
        if (soft_cap > 0) x = soft_cap * (1 - __fdividef(2, exp2_fast(x) + 1));  // tanh
      }
}

template <typename T>
__device__ __forceinline__ void mask_logits(Logits<T>& s, const Rows<T>& rows, int first_key,
                                            int window, int lane) {
  // Kept from the optimiser: of one sum of all terms nvcc 11.8 made the position alone where k is
  // 0.
  int first_column = first_key + mma_d_column(lane, 0);
  asm("" : "+r"(first_column));
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int k = 0; k < T::kKeyTiles; ++k)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int distance =  // from the key to the query
            rows.position[r][i / 2 % 2] - first_column - (k * kMmaTile + mma_d_column(0, i));
        if (distance < 0 || distance >= window) s[r][k].at[i] = -INFINITY;
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

}  // namespace prefill
}  // namespace volta
