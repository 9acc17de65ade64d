// Activations as a warp of the GEMV takes them: 128 columns of each row, brought to the exponent
// that a format's sums in FP16 bear.
#pragma once

#include <cuda_fp16.h>

#include "../../formats.h"
#include "../decoder/vector.cuh"

namespace volta {

constexpr unsigned kAllLanes = 0xffffffffu;

// Eight columns of a row, zero beyond k; a null row is zeros.
__device__ __forceinline__ uint4 read_columns(const __half* row, int column, int k) {
  if (row == nullptr || column >= k) return make_uint4(0, 0, 0, 0);
  if (k % 8 == 0) return __ldg(reinterpret_cast<const uint4*>(row + column));
  uint32_t words[4] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (column + j < k)
      words[j / 2] |= static_cast<uint32_t>(__half_as_ushort(row[column + j])) << 16 * (j % 2);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// A warp's 128 columns of x: as they were read, then brought to the format's exponent in shared
// memory. Vector v of 8 columns belongs to row v / 16, so that 16 lanes share a row.
template <typename F, int kM>
struct XStep {
  static constexpr int kVectors = kM * kStep / 8;
  static constexpr int kPerLane = (kVectors + kWarp - 1) / kWarp;

  struct Shared {
    uint4 x[kM][kStep / 8];
    float back[kM];                      // undoes the power of two
    float sums[F::kHasMin ? kM : 1][4];  // of x itself, for 32 columns each
  };

  uint4 raw[kPerLane];

  // rows: one pointer a lane and vector; null beyond m.
  __device__ __forceinline__ void read(const __half* const (&rows)[kPerLane], int column, int k,
                                       int lane) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      raw[i] = read_columns(rows[i], column + (lane + i * kWarp) % 16 * 8, k);
  }

  __device__ __forceinline__ void store(Shared& shared, int lane) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
      uint32_t largest = 0;  // |x| as bits, in the upper half
#pragma unroll
      for (int j = 0; j < 4; ++j)
        largest = max(largest, max(words[j] & 0x7fff0000u, words[j] << 16 & 0x7fff0000u));
#pragma unroll
      for (int step = 8; step > 0; step /= 2)
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));

      // |x| < 2^(exponent - 14). Infinity and NaN stay what they are.
      const int exponent = max(static_cast<int>(largest >> 26), 1);
      const int shift = exponent == 31 ? 0 : F::kXExponent + 14 - exponent;
      const int half_shift = shift / 2;  // two factors, each within FP16
      const uint32_t first = static_cast<uint32_t>(half_shift + 15) << 10;
      const uint32_t second = static_cast<uint32_t>(shift - half_shift + 15) << 10;
      uint4 scaled;
      uint32_t* out = &scaled.x;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Pair product =
            pair_mul(pair_mul(pair_of_bits(words[j]), pair_of_bits(first * 0x10001u)),
                     pair_of_bits(second * 0x10001u));
        out[j] = *reinterpret_cast<const uint32_t*>(&product);
      }

      const int vector = lane + i * kWarp;
      if (kVectors % kWarp != 0 && vector >= kVectors) continue;
      const int row = vector / 16;
      shared.x[row][vector % 16] = scaled;
      if (vector % 16 == 0)
        shared.back[row] = float_of_bits(static_cast<uint32_t>(127 - shift) << 23);
    }
    if (F::kHasMin) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 two = __half22float2(pair_of_bits(words[j]));
          sum += two.x + two.y;
        }
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        const int vector = lane + i * kWarp;
        if (vector % 4 == 0 && vector < kVectors) shared.sums[vector / 16][vector % 16 / 4] = sum;
      }
    }
  }
};

}  // namespace volta
