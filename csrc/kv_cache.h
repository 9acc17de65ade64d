// The paged KV cache: how a key or value is stored, encoded and decoded, shared by every kernel
// that writes or reads it.
//
// k_cache and v_cache are separate arrays [blocks][kv_heads][block_size][head_dim]; block_size is a
// multiple of 16. Token t of a sequence lies in block block_table[t / block_size] at offset
// t % block_size. A code stands for code * scale, with one FP32 scale a KV head for INT8 and none
// (one) for the other types; kernels leave the scale to their FP32 arithmetic.
#pragma once

#include <cmath>
#include <cstdint>

#include "half.h"

namespace volta {

// As the C interface takes it. FP32 is for the CPU alone.
enum KvType : int { kKvFp16 = 0, kKvE5M2 = 1, kKvInt8 = 2, kKvFp32 = 3 };

constexpr int kKvBlockMultiple = 16;  // tokens; a block holds a multiple of these

// A stored number of each type.
struct KvFp16 {
  uint16_t bits;
};
struct KvE5M2 {
  uint8_t bits;  // the upper byte of an FP16
};
struct KvInt8 {
  int8_t code;
};
struct KvFp32 {
  float value;
};

// Calls use(KvX{}) for the type; other numbers give the caller's `otherwise`.
template <typename Use>
int with_kv_type(int type, int otherwise, const Use& use) {
  switch (type) {
    case kKvFp16:
      return use(KvFp16{});
    case kKvE5M2:
      return use(KvE5M2{});
    case kKvInt8:
      return use(KvInt8{});
#ifndef __CUDACC__
    case kKvFp32:
      return use(KvFp32{});
#endif
    default:
      return otherwise;
  }
}

// Code to number, without its scale. Exact.
VOLTA_HD float kv_decode(KvFp16 x) { return half_bits_to_float(x.bits); }
VOLTA_HD float kv_decode(KvE5M2 x) {
  return half_bits_to_float(static_cast<uint16_t>(x.bits << 8));
}
VOLTA_HD float kv_decode(KvInt8 x) { return static_cast<float>(x.code); }
VOLTA_HD float kv_decode(KvFp32 x) { return x.value; }

// Number to the nearest code, ties to even; finite numbers beyond the range become its end.
VOLTA_HD void kv_encode(float value, float, KvFp16& out) {
  out.bits = static_cast<uint16_t>(float_to_e5_bits<10>(value));
}
VOLTA_HD void kv_encode(float value, float, KvE5M2& out) {
  out.bits = static_cast<uint8_t>(float_to_e5_bits<2>(value));
}
VOLTA_HD void kv_encode(float value, float scale, KvInt8& out) {
  const float code = rintf(value / scale);
  // NaN (also of 0 / 0) fails both comparisons and becomes 0.
  out.code = static_cast<int8_t>(code >= 127 ? 127 : code <= -128 ? -128 : code == code ? code : 0);
}
VOLTA_HD void kv_encode(float value, float, KvFp32& out) { out.value = value; }

// Kernels load 16 bytes, four words, of codes at a time and take the words apart in pairs.
template <typename Code>
constexpr int kKvPairsPerWord = 2 / static_cast<int>(sizeof(Code));

// Bytes of `word` (0-3) and `other` (4-7), chosen by the selector's four low nibbles.
VOLTA_HD uint32_t permute_bytes(uint32_t word, uint32_t other, uint32_t selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, other, selector);
#else
  const uint64_t all = static_cast<uint64_t>(other) << 32 | word;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    out |= static_cast<uint32_t>(all >> (selector >> 4 * i & 7) * 8 & 0xffu) << 8 * i;
  return out;
#endif
}

// Codes 2 * pair and 2 * pair + 1 of a word as two FP16 patterns, low and high. Exact, but INT8
// comes out 1152 = kKvInt8Bias above its value (as 1024 + 128 + code, whose bits need no
// arithmetic): subtract it, by one HADD2 or from the sum of products.
constexpr float kKvInt8Bias = 1152.0f;

VOLTA_HD uint32_t kv_pair_to_half_bits(KvFp16, uint32_t word, int) { return word; }
VOLTA_HD uint32_t kv_pair_to_half_bits(KvE5M2, uint32_t word, int pair) {
  return permute_bytes(word, 0, pair == 0 ? 0x1404u : 0x3424u);
}
VOLTA_HD uint32_t kv_pair_to_half_bits(KvInt8, uint32_t word, int pair) {
  return permute_bytes(word ^ 0x80808080u, 0x64646464u, pair == 0 ? 0x4140u : 0x4342u);
}

}  // namespace volta
