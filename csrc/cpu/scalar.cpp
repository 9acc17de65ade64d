// Portable C++, for CPUs without AVX2.
#include <algorithm>

#include "../half.h"
#include "nvfp4.h"
#include "range.h"

namespace volta {
namespace {

float e2m1(uint32_t code) { return half_bits_to_float(e2m1_to_half_bits(code)) * kE2M1HalfScale; }

float e4m3(uint8_t byte) { return half_bits_to_float(e4m3_to_half_bits(byte)) * kE4M3HalfScale; }

// One row of one group: 16 weights without the row's scale.
void decode_group(const Nvfp4Matrix& w, int64_t block, int64_t group, int row, float* out) {
  const int64_t tile = block * (w.k / kGroup) + group;
  const uint8_t* codes = w.codes + tile * kRowBlock * kGroup / 2;
  const float scale = e4m3(w.scales[tile * kRowBlock + row]);
  for (int k = 0; k < kGroup; k += 2) {
    const int h = k / 8, u = k / 4 % 2, e = k / 2 % 2;
    const uint8_t pair = codes[32 * h + 16 * (row / 4) + 8 * u + 2 * (row % 4) + e];
    out[k] = e2m1(pair & 0xfu) * scale;
    out[k + 1] = e2m1(pair >> 4) * scale;
  }
}

int rows_of(int64_t n, int64_t block) {
  return static_cast<int>(std::min<int64_t>(kRowBlock, n - block * kRowBlock));
}

void nvfp4_gemv(const Nvfp4Matrix& w, const float* x, float* y, int64_t m, int64_t begin,
                int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    for (int row = 0; row < rows_of(w.n, block); ++row) {
      float sum[kMaxGemvM] = {};
      for (int64_t group = 0; group < w.k / kGroup; ++group) {
        float weights[kGroup];
        decode_group(w, block, group, row, weights);
        for (int64_t i = 0; i < m; ++i) {
          const float* xg = x + i * w.k + group * kGroup;
          float partial = 0;
          for (int k = 0; k < kGroup; ++k) partial += weights[k] * xg[k];
          sum[i] += partial;
        }
      }
      const int64_t n = block * kRowBlock + row;
      for (int64_t i = 0; i < m; ++i) y[i * w.n + n] = sum[i] * w.row_scale[n];
    }
  }
}

void half_gemv(const HalfMatrix& w, const float* x, float* y, int64_t m, int64_t begin,
               int64_t end) {
  for (int64_t n = begin * kRowBlock; n < std::min(end * kRowBlock, w.n); ++n) {
    float sum[kMaxGemvM] = {};
    for (int64_t group = 0; group < w.k; group += kGroup) {
      float weights[kGroup];
      for (int k = 0; k < kGroup; ++k) weights[k] = half_bits_to_float(w.w[n * w.k + group + k]);
      for (int64_t i = 0; i < m; ++i) {
        float partial = 0;
        for (int k = 0; k < kGroup; ++k) partial += weights[k] * x[i * w.k + group + k];
        sum[i] += partial;
      }
    }
    for (int64_t i = 0; i < m; ++i) y[i * w.n + n] = sum[i];
  }
}

}  // namespace

const CpuKernels kScalarKernels = {nvfp4_gemv, half_gemv};

}  // namespace volta
