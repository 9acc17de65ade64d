// Two FP16 numbers in a register: __half2 in CUDA, two exact floats on the host, so that one decode
// serves both. Decodes only form numbers that FP16 holds exactly, or rounds once, as they say.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define VOLTA_DECODE __device__ __forceinline__
#define VOLTA_MEMBER static __device__ __forceinline__
#else
#include <cstring>
// A copy compiled for AVX2 must never be linked into the scalar path: functions have internal
// linkage; members, which cannot, are never compiled out of line.
#define VOLTA_DECODE static inline
#define VOLTA_MEMBER __attribute__((always_inline)) static inline
#endif

namespace volta {

#ifdef __CUDACC__

using Pair = __half2;

VOLTA_DECODE Pair pair_of_bits(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }
VOLTA_DECODE Pair pair_mul(Pair a, Pair b) { return __hmul2(a, b); }
VOLTA_DECODE Pair pair_sub(Pair a, Pair b) { return __hsub2(a, b); }
VOLTA_DECODE Pair pair_low(Pair a) { return __low2half2(a); }
VOLTA_DECODE Pair pair_high(Pair a) { return __high2half2(a); }
VOLTA_DECODE float float_of_half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
VOLTA_DECODE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
// a * n, rounded once, for n below 2^23. 2^23 + n is an OR; a conversion would take eight times as
// long.
VOLTA_DECODE float times_integer(float a, uint32_t n) {
  return fmaf(a, __uint_as_float(0x4b000000u | n), -8388608.0f * a);
}
VOLTA_DECODE uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

#else

struct Pair {
  float low, high;
};

VOLTA_DECODE float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

VOLTA_DECODE uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Both cases are computed and one is selected: codes are random, a branch would be guessed wrong.
VOLTA_DECODE float times_integer(float a, uint32_t n) { return a * static_cast<float>(n); }

VOLTA_DECODE float float_of_half_bits(uint32_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t finite = (magnitude << 13) + 0x38000000u;
  const uint32_t normal = magnitude < 0x7c00u ? finite : finite + 0x38000000u;
  const uint32_t subnormal =
      bits_of_float(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f);
  return float_of_bits((half & 0x8000u) << 16 | (magnitude < 0x400u ? subnormal : normal));
}

VOLTA_DECODE Pair pair_of_bits(uint32_t bits) {
  return {float_of_half_bits(bits & 0xffffu), float_of_half_bits(bits >> 16)};
}
VOLTA_DECODE Pair pair_mul(Pair a, Pair b) { return {a.low * b.low, a.high * b.high}; }
VOLTA_DECODE Pair pair_sub(Pair a, Pair b) { return {a.low - b.low, a.high - b.high}; }
VOLTA_DECODE Pair pair_low(Pair a) { return {a.low, a.low}; }
VOLTA_DECODE Pair pair_high(Pair a) { return {a.high, a.high}; }

// Byte i of the result is byte (selector >> 4i & 7) of b:a, as PRMT has it.
VOLTA_DECODE uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}

#endif

}  // namespace volta
