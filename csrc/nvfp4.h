// NVFP4 as numbers: groups of 16 E2M1 codes share one E4M3 scale, each row has one FP32 scale.
//
//   W[n][k] = e2m1(code[n][k]) * e4m3(scale[n][k / 16]) * row_scale[n]
//
// Both small formats are decoded by moving their bits into an FP16 pattern, which is right up to a
// fixed power of two. Kernels leave that power to the FP32 epilogue, so no scale is ever rounded.
// Every function is plain integer arithmetic, the same for host and device builds.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define VOLTA_HD __host__ __device__ __forceinline__
#else
// Internal linkage: a copy compiled for AVX2 must never be linked into the scalar path.
#define VOLTA_HD static inline
#endif

namespace volta {

constexpr int kGroup = 16;                  // weights per E4M3 scale
constexpr int kMaxGemvM = 8;                // rows of activations a GEMV takes
constexpr float kE2M1HalfScale = 16384.0f;  // 2^14: e2m1 = half * 2^14
constexpr float kE4M3HalfScale = 256.0f;    // 2^8: e4m3 = half * 2^8

// Codes i and i + 4 of a word of eight (code 0 in the low bits) as two FP16 patterns, low and high
// half of the result, each 2^-14 of its value. E2M1 (sign, two exponent bits, one of mantissa)
// lands on FP16's sign, low exponent and high mantissa bits; 0.5 becomes an FP16 subnormal, which
// is exact.
VOLTA_HD uint32_t e2m1_pair_to_half_bits(uint32_t codes, int i) {
  const uint32_t sign = i < 3 ? codes << (12 - 4 * i) : codes;
  const uint32_t magnitude = i < 3 ? codes << (9 - 4 * i) : codes >> 3;
  return (sign & 0x80008000u) | (magnitude & 0x0e000e00u);
}

// An E4M3 byte as an FP16 pattern, 2^-8 of its value, subnormals included. The two NaN bytes (0x7f,
// 0xff) come out as +-480: packing refuses them, so a kernel never meets one.
VOLTA_HD uint16_t e4m3_to_half_bits(uint8_t byte) {
  return static_cast<uint16_t>((byte & 0x80u) << 8 | (byte & 0x7fu) << 7);
}

}  // namespace volta
