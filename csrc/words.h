// How codes lie in 32-bit words, so that a shift and a mask turn two of them into an FP16 pair.
//
// A word of 4-bit codes holds eight columns, pair i the columns 2i and 2i + 1: the even one in the
// low 16 bits, the odd one in the high. `*_pairs` decodes, `pack_*` and `unpack_*` are the layout.
#pragma once

#include "pair.h"

namespace volta {

#ifdef __CUDACC__
#define VOLTA_PACK __host__ __device__ __forceinline__
#else
#define VOLTA_PACK static inline
#endif

// --- E2M1: sign, two bits of exponent, one of mantissa -----------------------------------------
// In FP16 these are bits 15, 11, 10 and 9, which gives 2^-14 of the value, exactly (0.5 as a
// subnormal). Pairs 0 and 1 lie so that one shift brings them there. No third set of these bits
// fits beside them, so of pairs 2 and 3 sign and magnitude move by different distances: a
// multiplication by the sum of two powers of two does both.
constexpr uint32_t kE2M1Mask = 0x8e008e00u;

VOLTA_DECODE void e2m1_pairs(uint32_t word, Pair out[4]) {
  out[0] = pair_of_bits(word & kE2M1Mask);
  out[1] = pair_of_bits(word << 3 & kE2M1Mask);
  out[2] = pair_of_bits((word & 0x40384038u) * (64u + 2u) & kE2M1Mask);
  out[3] = pair_of_bits((word & 0x20072007u) * (512u + 4u) & kE2M1Mask);
}

// code: 4 bits, the sign in bit 3; column: 0 to 7.
VOLTA_PACK uint32_t pack_e2m1(uint32_t code, int column) {
  const int sign[4] = {15, 12, 14, 13}, magnitude[4] = {9, 6, 3, 0};
  const uint32_t bits = code >> 3 << sign[column / 2] | (code & 7u) << magnitude[column / 2];
  return bits << 16 * (column % 2);
}

VOLTA_PACK uint32_t unpack_e2m1(uint32_t word, int column) {
  const int sign[4] = {15, 12, 14, 13}, magnitude[4] = {9, 6, 3, 0};
  word >>= 16 * (column % 2);
  return (word >> sign[column / 2] & 1u) << 3 | (word >> magnitude[column / 2] & 7u);
}

// --- Unsigned integers of 4 to 6 bits ------------------------------------------------------------
// An integer in the low bits of FP16's mantissa is added to the power of two whose exponent is
// there: 1024 for bits from 0 on, 64 for bits from 4 on. Taking the power and the zero point away
// is exact. Bits above the fourth come from a second plane.
constexpr uint32_t kLowMagic = 0x64006400u;   // 1024, 1024
constexpr uint32_t kHighMagic = 0x54005400u;  // 64, 64

// The pairs of a word as 1024 + q (even pairs) and 64 + q (odd pairs). above: what the second plane
// has for the four pairs, in place already.
VOLTA_DECODE void integer_pairs(uint32_t word, const uint32_t above[4], Pair out[4]) {
  const uint32_t upper = word >> 8;
  out[0] = pair_of_bits((word & 0x000f000fu) | (above[0] | kLowMagic));
  out[1] = pair_of_bits((word & 0x00f000f0u) | (above[1] | kHighMagic));
  out[2] = pair_of_bits((upper & 0x000f000fu) | (above[2] | kLowMagic));
  out[3] = pair_of_bits((upper & 0x00f000f0u) | (above[3] | kHighMagic));
}

VOLTA_PACK uint32_t pack_nibble(uint32_t code, int column) {
  return code << (4 * (column / 2) + 16 * (column % 2));
}

VOLTA_PACK uint32_t unpack_nibble(uint32_t word, int column) {
  return word >> (4 * (column / 2) + 16 * (column % 2)) & 15u;
}

// Bit `from` of both halves of a plane to bit `to`.
VOLTA_DECODE uint32_t move_bits(uint32_t plane, int from, int to, uint32_t mask) {
  return (from > to ? plane >> (from - to) : plane << (to - from)) & mask;
}

// --- Bytes: a word holds four columns ------------------------------------------------------------
// E4M3: pair 0 has its sign in bit 15 and its magnitude from bit 7 on, where FP16 wants them, pair
// 1 bit 14 and from bit 0 on. FP16 reads 2^-8 of the value, subnormals included.
VOLTA_DECODE void e4m3_pairs(uint32_t word, Pair out[2]) {
  out[0] = pair_of_bits(word & 0xbf80bf80u);
  out[1] = pair_of_bits((word << 1 & 0x80008000u) | (word << 7 & 0x3f803f80u));
}

VOLTA_PACK uint32_t pack_e4m3(uint32_t byte, int column) {
  const uint32_t bits =
      column < 2 ? byte >> 7 << 15 | (byte & 0x7fu) << 7 : byte >> 7 << 14 | (byte & 0x7fu);
  return bits << 16 * (column % 2);
}

VOLTA_PACK uint32_t unpack_e4m3(uint32_t word, int column) {
  word >>= 16 * (column % 2);
  return column < 2 ? (word >> 15 & 1u) << 7 | (word >> 7 & 0x7fu)
                    : (word >> 14 & 1u) << 7 | (word & 0x7fu);
}

// Signed bytes, stored with 128 added, as 1024 + 128 + q; columns in their order.
VOLTA_DECODE void int8_pairs(uint32_t word, Pair out[2]) {
  out[0] = pair_of_bits(select_bytes(word, kLowMagic >> 8, 0x4140u));
  out[1] = pair_of_bits(select_bytes(word, kLowMagic >> 8, 0x4342u));
}

VOLTA_PACK uint32_t pack_byte(uint32_t byte, int column) { return byte << 8 * column; }
VOLTA_PACK uint32_t unpack_byte(uint32_t word, int column) { return word >> 8 * column & 0xffu; }

// --- Scales -------------------------------------------------------------------------------------
// Bytes 0 and 2 of a word of E4M3 as a pair, 2^-8 of their values.
VOLTA_DECODE Pair e4m3_even_bytes(uint32_t word) {
  return pair_of_bits((word << 8 & 0x80008000u) | (word << 7 & 0x3f803f80u));
}

}  // namespace volta
