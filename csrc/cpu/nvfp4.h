// NVFP4 as numbers: groups of 16 E2M1 codes share one E4M3 scale, each row has one FP32 scale.
//
//   W[n][k] = e2m1(code[n][k]) * e4m3(scale[n][k / 16]) * row_scale[n]
//
// Both small formats are decoded by moving their bits into an FP16 pattern, which is right up to a
// fixed power of two.
#pragma once

#include <cstdint>

namespace volta {

constexpr float kE2M1HalfScale = 16384.0f;  // 2^14: e2m1 = half * 2^14
constexpr float kE4M3HalfScale = 256.0f;    // 2^8: e4m3 = half * 2^8

// Internal linkage: a copy compiled for AVX2 must never be linked into the scalar path.

// An E2M1 code as an FP16 pattern, 2^-14 of its value. Sign, two exponent bits and one of mantissa
// land on FP16's sign, low exponent and high mantissa bits; 0.5 becomes an FP16 subnormal, which is
// exact.
static inline uint16_t e2m1_to_half_bits(uint32_t code) {
  return static_cast<uint16_t>((code & 8u) << 12 | (code & 7u) << 9);
}

// An E4M3 byte as an FP16 pattern, 2^-8 of its value, subnormals included. The two NaN bytes (0x7f,
// 0xff) come out as +-480: packing refuses them, so a kernel never meets one.
static inline uint16_t e4m3_to_half_bits(uint8_t byte) {
  return static_cast<uint16_t>((byte & 0x80u) << 8 | (byte & 0x7fu) << 7);
}

}  // namespace volta
