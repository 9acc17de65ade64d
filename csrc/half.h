// FP16 and narrower floats as bit patterns: plain arithmetic, the same for host and device builds.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define VOLTA_HD __host__ __device__ __forceinline__
#else
// Internal linkage: a copy compiled for AVX2 must never be linked into the scalar path.
#define VOLTA_HD static inline
#endif

namespace volta {

VOLTA_HD uint32_t float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

VOLTA_HD float bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Exact; subnormals, infinities and NaN included.
VOLTA_HD float half_bits_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bits_to_float(sign | ((magnitude << 13) + 0x38000000u));
  const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
  return bits_to_float(sign | float_to_bits(value));
}

// A float with FP16's exponent and kMantissa bits of fraction (10: FP16, 2: E5M2), rounded once to
// the nearest, ties to even. What is finite stays finite: beyond the largest number it is that one.
template <int kMantissa>
VOLTA_HD uint32_t float_to_e5_bits(float value) {
  constexpr int kDropped = 23 - kMantissa;
  constexpr uint32_t kInfinity = 31u << kMantissa;
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = bits >> 31 << (kMantissa + 5);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | kInfinity | 1u << (kMantissa - 1);  // NaN
  if (magnitude == 0x7f800000u) return sign | kInfinity;
  if (magnitude >= 143u << 23) return sign | (kInfinity - 1);  // 2^16 and more
  if (magnitude < 113u << 23) {
    // Subnormal. Adding a number whose last bit is worth 2^(-14 - kMantissa) rounds there.
    const float anchor = bits_to_float(static_cast<uint32_t>(127 + 9 - kMantissa) << 23);
    return sign | (float_to_bits(bits_to_float(magnitude) + anchor) - float_to_bits(anchor));
  }
  const uint32_t half_ulp = (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
  const uint32_t rounded = ((magnitude + half_ulp) >> kDropped) - (112u << kMantissa);
  return sign | (rounded < kInfinity ? rounded : kInfinity - 1);
}

}  // namespace volta
