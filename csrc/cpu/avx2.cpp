// AVX2 + FMA + F16C. The eight lanes hold the eight rows of a block, so scales are vectors, columns
// are broadcasts and nothing is summed across lanes.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "nvfp4.h"
#include "range.h"

namespace volta {
namespace {

// An E2M1 value fits bfloat16, the upper half of a float. Two 16-entry byte tables give its bytes.
struct E2M1Tables {
  __m256i low, high;

  E2M1Tables() {
    alignas(16) uint8_t low_bytes[16], high_bytes[16];
    for (uint32_t code = 0; code < 16; ++code) {
      const float value = _cvtsh_ss(e2m1_to_half_bits(code)) * kE2M1HalfScale;
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      low_bytes[code] = static_cast<uint8_t>(bits >> 16);
      high_bytes[code] = static_cast<uint8_t>(bits >> 24);
    }
    low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<__m128i*>(low_bytes)));
    high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<__m128i*>(high_bytes)));
  }
};

// Calls use(k, weights of column k in eight rows) for the 16 columns of one group.
template <typename Use>
inline void for_each_column(const E2M1Tables& tables, const uint8_t* codes, Use use) {
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int h = 0; h < 2; ++h) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * h));
    const __m256i nibbles[2] = {_mm256_and_si256(bytes, nibble),
                                _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble)};
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i low = _mm256_shuffle_epi8(tables.low, nibbles[odd]);
      const __m256i high = _mm256_shuffle_epi8(tables.high, nibbles[odd]);
      const __m256i pairs[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
      for (int u = 0; u < 2; ++u) {
        const int k = 8 * h + 4 * u + odd;
        use(k, _mm256_castsi256_ps(_mm256_slli_epi32(pairs[u], 16)));
        use(k + 2, _mm256_castsi256_ps(_mm256_and_si256(pairs[u], upper)));
      }
    }
  }
}

// Eight E4M3 scales, each 2^-8 of its value. (VCVTPH2PS takes subnormals whatever MXCSR says.)
inline __m256 load_scales(const uint8_t* scales) {
  const __m128i bytes =
      _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
  const __m128i cleared = _mm_set1_epi16(static_cast<short>(0xbfff));  // a copy of the sign
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(bytes, 7), cleared));
}

// The row scales of a block, with the 2^8 that load_scales left out; zero beyond row n.
inline __m256 load_row_scales(const Nvfp4Matrix& w, int64_t block) {
  alignas(32) float scales[kRowBlock] = {};
  std::copy_n(w.row_scale + block * kRowBlock,
              std::min<int64_t>(kRowBlock, w.n - block * kRowBlock), scales);
  return _mm256_mul_ps(_mm256_load_ps(scales), _mm256_set1_ps(kE4M3HalfScale));
}

template <int M>
void nvfp4_gemv(const Nvfp4Matrix& w, const float* x, float* y, int64_t begin, int64_t end) {
  const E2M1Tables tables;
  const int64_t groups = w.k / kGroup;
  for (int64_t block = begin; block < end; ++block) {
    const uint8_t* codes = w.codes + block * groups * kRowBlock * kGroup / 2;
    const uint8_t* scales = w.scales + block * groups * kRowBlock;
    __m256 sum[M];
    for (int m = 0; m < M; ++m) sum[m] = _mm256_setzero_ps();
    for (int64_t group = 0; group < groups; ++group) {
      constexpr int kChains = M == 1 ? 2 : 1;  // one row alone would wait for its own additions
      __m256 partial[kChains][M];
      for (int c = 0; c < kChains; ++c)
        for (int m = 0; m < M; ++m) partial[c][m] = _mm256_setzero_ps();
      const float* xg = x + group * kGroup;
      for_each_column(tables, codes, [&](int k, __m256 weights) {
        for (int m = 0; m < M; ++m)
          partial[k / 2 % kChains][m] = _mm256_fmadd_ps(
              weights, _mm256_broadcast_ss(xg + m * w.k + k), partial[k / 2 % kChains][m]);
      });
      const __m256 scale = load_scales(scales);
      for (int c = 0; c < kChains; ++c)
        for (int m = 0; m < M; ++m) sum[m] = _mm256_fmadd_ps(partial[c][m], scale, sum[m]);
      codes += kRowBlock * kGroup / 2;
      scales += kRowBlock;
    }
    const __m256 row_scales = load_row_scales(w, block);
    for (int m = 0; m < M; ++m) {
      alignas(32) float row[kRowBlock];
      _mm256_store_ps(row, _mm256_mul_ps(sum[m], row_scales));
      std::copy_n(row, std::min<int64_t>(kRowBlock, w.n - block * kRowBlock),
                  y + m * w.n + block * kRowBlock);
    }
  }
}

inline float sum_lanes(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

template <int M>
void half_gemv(const HalfMatrix& w, const float* x, float* y, int64_t begin, int64_t end) {
  for (int64_t n = begin * kRowBlock; n < std::min(end * kRowBlock, w.n); ++n) {
    const uint16_t* row = w.w + n * w.k;
    __m256 sum[2][M];
    for (int m = 0; m < M; ++m) sum[0][m] = sum[1][m] = _mm256_setzero_ps();
    for (int64_t k = 0; k < w.k; k += kGroup)
      for (int half = 0; half < 2; ++half) {
        const __m256 weights =
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + k + 8 * half)));
        for (int m = 0; m < M; ++m)
          sum[half][m] =
              _mm256_fmadd_ps(weights, _mm256_loadu_ps(x + m * w.k + k + 8 * half), sum[half][m]);
      }
    for (int m = 0; m < M; ++m) y[m * w.n + n] = sum_lanes(_mm256_add_ps(sum[0][m], sum[1][m]));
  }
}

void nvfp4_gemv_any(const Nvfp4Matrix& w, const float* x, float* y, int64_t m, int64_t begin,
                    int64_t end) {
  constexpr decltype(&nvfp4_gemv<1>) by_m[kMaxGemvM] = {nvfp4_gemv<1>, nvfp4_gemv<2>, nvfp4_gemv<3>,
                                                        nvfp4_gemv<4>, nvfp4_gemv<5>, nvfp4_gemv<6>,
                                                        nvfp4_gemv<7>, nvfp4_gemv<8>};
  by_m[m - 1](w, x, y, begin, end);
}

void half_gemv_any(const HalfMatrix& w, const float* x, float* y, int64_t m, int64_t begin,
                   int64_t end) {
  constexpr decltype(&half_gemv<1>) by_m[kMaxGemvM] = {half_gemv<1>, half_gemv<2>, half_gemv<3>,
                                                       half_gemv<4>, half_gemv<5>, half_gemv<6>,
                                                       half_gemv<7>, half_gemv<8>};
  by_m[m - 1](w, x, y, begin, end);
}

}  // namespace

const CpuKernels kAvx2Kernels = {nvfp4_gemv_any, half_gemv_any};

}  // namespace volta
