// What a matrix of each format is packed from, and where its scales lie in a tile's words: a row of
// the table for each format, which packing and unpacking go over alike.
//
// A matrix comes as one byte for each code, [n][k], and up to four arrays of scales, each
// [n][k / columns, rounded up], all row-major:
//
//   nvfp4       codes E2M1; E4M3 of 16 columns
//   mxfp4       codes E2M1; of 32 columns, how many powers of two below the row's largest
//   fp4_f32     codes E2M1; FP32 of 32 columns
//   fp4_bf16    codes E2M1; BF16 of 32 columns
//   int4        codes 0 to 15; FP16 of 32 columns
//   int4_gG     codes 0 to 15; FP16 scale and a byte of zero point, 0 to 16, of G columns
//   q4_1        codes 0 to 15; FP16 scale and FP16 minimum of 32 columns
//   q4_k, q5_k  codes of 4 or 5 bits; FP16 d and FP16 dmin of 256 columns; scales and minima of 32
//               columns, bytes with 6 bits
//   q6_k        codes of 6 bits; FP16 d of 256 columns; signed bytes of 16 columns
//   q8_0        codes signed bytes; FP16 of 32 columns
//   fp8         codes E4M3
//   fp8_block   codes E4M3; FP32 of 128 columns
#pragma once

#include "formats.h"

namespace volta {

constexpr int kMaxArrays = 4;

enum class Coding { kE2M1, kUnsigned, kSigned, kE4M3 };

struct ScaleArray {
  int bytes, columns;  // of an element
};

// What a matrix of a format is packed from. multiple: what k must be a multiple of.
struct Source {
  Coding coding;
  int multiple, arrays;
  ScaleArray array[kMaxArrays];
};

// Bits `from` to `from + bits` of element `index` of an array, counted over the row's chunk, lie in
// metadata word `word` from bit `shift` on, xored with `flip`. The word after the last is the tail.
struct Field {
  int array, index, from, bits, word, shift;
  uint32_t flip;
};

// --- The formats ---------------------------------------------------------------------------------

VOLTA_PACK constexpr Source source(Nvfp4) { return {Coding::kE2M1, 16, 1, {{1, 16}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Nvfp4, const Visit& visit) {
  for (int g = 0; g < 8; ++g) visit(Field{0, g, 0, 8, g / 4, 16 * (g % 2) + 8 * (g / 2 % 2), 0});
}

VOLTA_PACK constexpr Source source(Mxfp4) { return {Coding::kE2M1, 32, 1, {{1, 32}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Mxfp4, const Visit& visit) {
  for (int b = 0; b < 4; ++b) visit(Field{0, b, 0, 8, 0, 8 * b, 0});
}

VOLTA_PACK constexpr Source source(Fp4Float) { return {Coding::kE2M1, 32, 1, {{4, 32}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Fp4Float, const Visit& visit) {
  for (int b = 0; b < 4; ++b) visit(Field{0, b, 0, 32, b, 0, 0});
}

// Two numbers of 16 bits for 32 columns to a word.
template <typename Visit>
VOLTA_PACK void for_each_half(const Visit& visit) {
  for (int b = 0; b < 4; ++b) visit(Field{0, b, 0, 16, b / 2, 16 * (b % 2), 0});
}

VOLTA_PACK constexpr Source source(Fp4Bfloat) { return {Coding::kE2M1, 32, 1, {{2, 32}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Fp4Bfloat, const Visit& visit) {
  for_each_half(visit);
}

VOLTA_PACK constexpr Source source(Int4) { return {Coding::kUnsigned, 32, 1, {{2, 32}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Int4, const Visit& visit) {
  for_each_half(visit);
}

template <int kGroup>
VOLTA_PACK constexpr Source source(Int4Zero<kGroup>) {
  return {Coding::kUnsigned, kGroup, 2, {{2, kGroup}, {1, kGroup}}};
}
template <int kGroup, typename Visit>
VOLTA_PACK void for_each_field(Int4Zero<kGroup>, const Visit& visit) {
  for (int g = 0; g < Int4Zero<kGroup>::kMetaWords; ++g) {
    visit(Field{0, g, 0, 16, g, 0, 0});
    visit(Field{1, g, 0, 8, g, 16, 0});
  }
}

VOLTA_PACK constexpr Source source(Q4_1) { return {Coding::kUnsigned, 32, 2, {{2, 32}, {2, 32}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Q4_1, const Visit& visit) {
  for (int b = 0; b < 4; ++b) {
    visit(Field{0, b, 0, 16, b, 0, 0});
    visit(Field{1, b, 0, 16, b, 16, 0});
  }
}

template <int kMiddle>
VOLTA_PACK constexpr Source source(KQuant<kMiddle>) {
  return {Coding::kUnsigned, 256, 4, {{2, 256}, {2, 256}, {1, 32}, {1, 32}}};
}
template <int kMiddle, typename Visit>
VOLTA_PACK void for_each_field(KQuant<kMiddle>, const Visit& visit) {
  visit(Field{0, 0, 0, 16, 0, 0, 0});
  visit(Field{1, 0, 0, 16, 0, 16, 0});
  for (int b = 0; b < 8; ++b) visit(Field{2, b, 0, 6, 1 + b / 4, 8 * (b % 4), 0});
  for (int b = 0; b < 4; ++b) {
    visit(Field{3, b, 0, 6, 3, 8 * b, 0});
    for (int part = 0; part < 3; ++part)
      visit(Field{3, 4 + b, 2 * part, 2, 1 + part, 8 * b + 6, 0});
  }
}

VOLTA_PACK constexpr Source source(Q6_K) {
  return {Coding::kUnsigned, 256, 2, {{2, 256}, {1, 16}}};
}
template <typename Visit>
VOLTA_PACK void for_each_field(Q6_K, const Visit& visit) {
  visit(Field{0, 0, 0, 16, Q6_K::kMetaWords, 0, 0});
  for (int g = 0; g < 16; ++g) visit(Field{1, g, 0, 8, g / 4, 8 * (g % 4), 0x80});
}

VOLTA_PACK constexpr Source source(Q8_0) { return {Coding::kSigned, 32, 1, {{2, 32}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Q8_0, const Visit& visit) {
  for_each_half(visit);
}

VOLTA_PACK constexpr Source source(Fp8) { return {Coding::kE4M3, 16, 0, {}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Fp8, const Visit&) {}

VOLTA_PACK constexpr Source source(Fp8Block) { return {Coding::kE4M3, 16, 1, {{4, 128}}}; }
template <typename Visit>
VOLTA_PACK void for_each_field(Fp8Block, const Visit& visit) {
  visit(Field{0, 0, 0, 32, 0, 0, 0});
}

}  // namespace volta
