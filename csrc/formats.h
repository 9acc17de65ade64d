// The weight formats: one struct each, over the same tiles. What every struct says:
//
//   kChunk        columns whose codes, high bits and metadata lie together: 128 or 256
//   kVecs         16-byte vectors of codes that a row has for a block of 32 columns
//   kHighVecs     16-byte vectors of further code bits that a row has for a chunk; `high` in decode
//                 are those of the block
//   kMetaWords    32-bit words of scales that a row has for a chunk: 0, 1, 2 or 4
//   kTail         whether an FP16 number follows the metadata
//   kScaleBlocks  blocks of 32 columns under one FP32 factor, at most kSumBlocks; inside, weights
//                 are FP16 numbers w = raw * scale that are formed without rounding (Q6_K: rounded
//                 once)
//   kHasScale     whether there is such a scale, for 16 columns each; else w = raw
//   kXExponent    log2 of the largest |x|, so that the products of a sum in FP16 stay below 65504
//   kUnit         the weight is unit * factor * w + minimum, times its row's scale
//   kHasMin       whether there is a minimum
//   kHasFactor    whether there is a factor: if not, w fits FP16 as it is
//   kHalfScale    what factor times the row's power of two (ops.packed: half_factor) is multiplied
//                 by to be an FP16 number that makes FP16 weights of w
//
// A packed matrix is [n / 32][k / kChunk] tiles. A tile is, in this order, with 32 rows each:
// codes [kChunk / 32][kVecs][row][16 bytes], high bits [kHighVecs][row][16 bytes], metadata
// [row][kMetaWords * 4 bytes], tail [row][2 bytes]. So a warp, a lane a row, reads 512 bytes at
// once. Rows beyond n and columns beyond k are codes and scales of zero.
#pragma once

#include "words.h"

namespace volta {

constexpr int kTileRows = 32;
constexpr int kBlock = 32;     // columns a row decodes at a time
constexpr int kStep = 128;     // columns of x brought to one exponent
constexpr int kSumBlocks = 2;  // blocks summed in FP16 at most: more would cost precision

// Bytes of a tile of a format.
template <typename F>
VOLTA_PACK constexpr int tile_bytes() {
  return kTileRows * (F::kChunk / kBlock * F::kVecs * 16 + F::kHighVecs * 16 + F::kMetaWords * 4 +
                      (F::kTail ? 2 : 0));
}

// Defaults; formats name what differs.
struct Format {
  static constexpr int kChunk = 128, kVecs = 1, kHighVecs = 0, kMetaWords = 0;
  static constexpr int kScaleBlocks = kSumBlocks;
  static constexpr bool kTail = false, kHasScale = false, kHasMin = false;
  static constexpr bool kHasFactor = true;
  static constexpr float kUnit = 1.0f, kHalfScale = 1.0f;
  VOLTA_MEMBER Pair scale(const uint32_t*, int, int) { return pair_of_bits(0x3c003c00u); }
  VOLTA_MEMBER float factor(const uint32_t*, uint32_t, int) { return 1.0f; }
  VOLTA_MEMBER float minimum(const uint32_t*, uint32_t, int) { return 0.0f; }
};

// Word i of an array in registers: a comparison, for an index that is not known when compiling
// would put the array into memory.
VOLTA_DECODE uint32_t pick2(const uint32_t* words, unsigned i) {
  return i == 0 ? words[0] : words[1];
}
VOLTA_DECODE uint32_t pick4(const uint32_t* words, unsigned i) {
  return i < 2 ? pick2(words, i) : pick2(words + 2, i - 2);
}

// Eight columns of a block, w.
template <typename F>
VOLTA_DECODE void decode(const uint32_t* codes, const uint32_t* high, const uint32_t* meta,
                         unsigned block, int eight, Pair out[4]) {
  F::raw(codes, high, meta, block, eight, out);
  if (!F::kHasScale) return;
  const Pair scale = F::scale(meta, block, eight / 2);
  for (int i = 0; i < 4; ++i) out[i] = pair_mul(out[i], scale);
}

// --- E2M1 ----------------------------------------------------------------------------------------

// NVFP4: an E4M3 scale for 16 columns. Of a word of metadata, which has two blocks, bytes 0 and 2
// are the first block's two scales, 1 and 3 the second's.
struct Nvfp4 : Format {
  static constexpr int kMetaWords = 2, kXExponent = 5;
  static constexpr bool kHasScale = true, kHasFactor = false;
  static constexpr float kUnit = 128.0f;  // w = e2m1 * e4m3 / 128: from 2^-17 to 21

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t*, const uint32_t*, int, int eight,
                        Pair out[4]) {
    e2m1_pairs(codes[eight], out);
  }
  VOLTA_MEMBER Pair scale(const uint32_t* meta, unsigned block, int half) {
    const Pair both = e4m3_even_bytes(pick2(meta, block / 2) >> 8 * (block % 2));
    const Pair scales = pair_mul(both, pair_of_bits(0x78007800u));  // 2^15, so 2^7 of the scale
    return half ? pair_high(scales) : pair_low(scales);
  }
};

// E2M1 codes whose scale for 32 columns stays out of FP16: w = e2m1 * 2^-14.
struct Fp4Wide : Format {
  static constexpr int kScaleBlocks = 1, kXExponent = 15;
  // Half of a factor reaches the row's power of two where all its codes are the least, 0.5.
  static constexpr float kUnit = 16384.0f, kHalfScale = 0.5f;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t*, const uint32_t*, int, int eight,
                        Pair out[4]) {
    e2m1_pairs(codes[eight], out);
  }
};

// MXFP4: byte b of the metadata is how many powers of two block b lies below the row's largest.
struct Mxfp4 : Fp4Wide {
  static constexpr int kMetaWords = 1;
  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    const uint32_t below = meta[0] >> 8 * block & 0xffu;
    return below < 127u ? float_of_bits((127u - below) << 23) : 0.0f;
  }
};

struct Fp4Float : Fp4Wide {
  static constexpr int kMetaWords = 4;
  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    return float_of_bits(pick4(meta, block));
  }
};

struct Fp4Bfloat : Fp4Wide {
  static constexpr int kMetaWords = 2;
  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    const uint32_t two = pick2(meta, block / 2);
    return float_of_bits(block % 2 ? two & 0xffff0000u : two << 16);
  }
};

// --- Integers of 4 bits --------------------------------------------------------------------------

// w = q - zero, for four pairs that come as 1024 + q and 64 + q.
VOLTA_DECODE void take_zero(uint32_t zero, Pair pairs[4]) {
  const uint32_t both = zero | zero << 16;
  const Pair low = pair_of_bits(kLowMagic | both), high = pair_of_bits(kHighMagic | both << 4);
  for (int i = 0; i < 4; i += 2) {
    pairs[i] = pair_sub(pairs[i], low);
    pairs[i + 1] = pair_sub(pairs[i + 1], high);
  }
}

constexpr int kMiddle4 = 8, kMiddle5 = 16, kMiddle6 = 32;  // of codes of so many bits

// A group's word of metadata: the scale in FP16, above it the zero point, 0 to 16.
template <int kGroup>
struct Int4Zero : Format {
  static constexpr int kMetaWords = kChunk / kGroup, kXExponent = 5;
  static constexpr int kScaleBlocks = kGroup / kBlock < kSumBlocks ? kGroup / kBlock : kSumBlocks;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t*, const uint32_t* meta,
                        unsigned block, int eight, Pair out[4]) {
    const uint32_t none[4] = {};
    integer_pairs(codes[eight], none, out);
    take_zero(group(meta, block) >> 16, out);
  }
  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    return float_of_half_bits(group(meta, block) & 0xffffu);
  }

 private:
  VOLTA_MEMBER uint32_t group(const uint32_t* meta, unsigned block) {
    return kMetaWords == 4   ? pick4(meta, block)
           : kMetaWords == 2 ? pick2(meta, block / 2)
                             : meta[0];
  }
};

// Symmetric, groups of 32, GGUF's Q4_0 among them: the zero point is 8.
struct Int4 : Format {
  static constexpr int kMetaWords = 2, kScaleBlocks = 1, kXExponent = 6;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t*, const uint32_t*, int, int eight,
                        Pair out[4]) {
    const uint32_t none[4] = {};
    integer_pairs(codes[eight], none, out);
    take_zero(kMiddle4, out);
  }
  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    return float_of_half_bits(pick2(meta, block / 2) >> 16 * (block % 2) & 0xffffu);
  }
};

// GGUF's Q4_1: a block's word of metadata is its scale and its minimum in FP16.
struct Q4_1 : Int4 {
  static constexpr int kMetaWords = 4;
  static constexpr bool kHasMin = true;

  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    return float_of_half_bits(pick4(meta, block) & 0xffffu);
  }
  VOLTA_MEMBER float minimum(const uint32_t* meta, uint32_t tail, unsigned block) {
    return kMiddle4 * factor(meta, tail, block) + float_of_half_bits(pick4(meta, block) >> 16);
  }
};

// --- GGUF's K-quants -----------------------------------------------------------------------------

// Metadata of Q4_K and Q5_K. Word 0: scale and minimum of the 256 columns in FP16. Words 1 to 3: in
// the low six bits of their bytes the scales of blocks 0 to 3, of blocks 4 to 7, and the minima of
// blocks 0 to 3; in the high two bits of byte i, from word 1 to word 3, the minimum of block 4 + i.
// Words are chosen by comparison: an index that is not known when compiling would put them in
// memory.
VOLTA_DECODE uint32_t k_scale(const uint32_t* meta, unsigned block) {
  return pick2(meta + 1, block / 4) >> 8 * (block % 4) & 63u;
}
VOLTA_DECODE uint32_t k_minimum(const uint32_t* meta, unsigned block) {
  const unsigned shift = 8 * (block % 4);
  if (block < 4) return meta[3] >> shift & 63u;
  return (meta[1] >> shift >> 6 & 3u) | (meta[2] >> shift >> 4 & 12u) |
         (meta[3] >> shift >> 2 & 48u);
}

template <int kMiddle>
struct KQuant : Format {
  static constexpr int kChunk = 256, kMetaWords = 4, kScaleBlocks = 1;
  static constexpr bool kHasMin = true;

  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    return times_integer(float_of_half_bits(meta[0] & 0xffffu), k_scale(meta, block));
  }
  VOLTA_MEMBER float minimum(const uint32_t* meta, uint32_t tail, unsigned block) {
    return factor(meta, tail, block) * kMiddle -
           times_integer(float_of_half_bits(meta[0] >> 16), k_minimum(meta, block));
  }
};

// w = q - 8.
struct Q4_K : KQuant<kMiddle4> {
  static constexpr int kXExponent = 6;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t*, const uint32_t*, int, int eight,
                        Pair out[4]) {
    const uint32_t none[4] = {};
    integer_pairs(codes[eight], none, out);
    take_zero(kMiddle4, out);
  }
};

// w = q - 16. A block has a word of high bits: bit 4 * eight + pair of each half is the fifth bit
// of that pair.
struct Q5_K : KQuant<kMiddle5> {
  static constexpr int kHighVecs = 2, kXExponent = 6;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t* high, const uint32_t*, int,
                        int eight, Pair out[4]) {
    uint32_t fifth[4];
    for (int i = 0; i < 4; ++i) {
      const int to = i % 2 ? 8 : 4;
      fifth[i] = move_bits(high[0], 4 * eight + i, to, 0x00010001u << to);
    }
    integer_pairs(codes[eight], fifth, out);
    take_zero(kMiddle5, out);
  }
};

// w = (q - 32) * scale, at most 4096, rounded to FP16's 11 bits where it is formed. The metadata
// are the scales of 16 columns, signed bytes with 128 added; the tail is the factor. A block has
// two words of high bits: bits 8 * (eight % 2) + 2 * pair of each half of word eight / 2 are the
// upper two of that pair.
struct Q6_K : Format {
  static constexpr int kChunk = 256, kHighVecs = 4, kMetaWords = 4, kXExponent = -3;
  static constexpr bool kTail = true, kHasScale = true;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t* high, const uint32_t*, int,
                        int eight, Pair out[4]) {
    uint32_t upper[4];
    for (int i = 0; i < 4; ++i) {
      const int to = i % 2 ? 8 : 4;
      upper[i] = move_bits(high[eight / 2], 8 * (eight % 2) + 2 * i, to, 0x00030003u << to);
    }
    integer_pairs(codes[eight], upper, out);
    take_zero(kMiddle6, out);
  }
  VOLTA_MEMBER Pair scale(const uint32_t* meta, unsigned block, int half) {
    const unsigned byte = block % 2 * 2 + half;
    const uint32_t biased =
        select_bytes(pick4(meta, block / 2), kLowMagic >> 8, 0x4040u | byte * 0x0101u);
    return pair_sub(pair_of_bits(biased), pair_of_bits(0x64806480u));  // 1024 + 128
  }
  VOLTA_MEMBER float factor(const uint32_t*, uint32_t tail, int) {
    return float_of_half_bits(tail);
  }
};

// --- Bytes ---------------------------------------------------------------------------------------

// GGUF's Q8_0: a scale in FP16 for 32 columns; w = q.
struct Q8_0 : Format {
  static constexpr int kVecs = 2, kMetaWords = 2, kScaleBlocks = 1, kXExponent = 3;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t*, const uint32_t*, int, int eight,
                        Pair out[4]) {
    int8_pairs(codes[2 * eight], out);
    int8_pairs(codes[2 * eight + 1], out + 2);
    for (int i = 0; i < 4; ++i) out[i] = pair_sub(out[i], pair_of_bits(0x64806480u));
  }
  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned block) {
    return float_of_half_bits(pick2(meta, block / 2) >> 16 * (block % 2) & 0xffffu);
  }
};

// FP8 E4M3 under its row's scale alone: per channel or per tensor. w = e4m3 / 256.
struct Fp8 : Format {
  static constexpr int kVecs = 2, kXExponent = 9;
  static constexpr bool kHasFactor = false;
  static constexpr float kUnit = 256.0f;

  VOLTA_MEMBER void raw(const uint32_t* codes, const uint32_t*, const uint32_t*, unsigned,
                        int eight, Pair out[4]) {
    e4m3_pairs(codes[2 * eight], out);
    e4m3_pairs(codes[2 * eight + 1], out + 2);
  }
};

// FP8 E4M3 with an FP32 scale for 128 columns.
struct Fp8Block : Fp8 {
  static constexpr int kMetaWords = 1;
  static constexpr bool kHasFactor = true;
  static constexpr float kHalfScale = 1.0f / 256;  // the least code is 2^-9
  VOLTA_MEMBER float factor(const uint32_t* meta, uint32_t, unsigned) {
    return float_of_bits(meta[0]);
  }
};

// Every format: its number in the C interface, its name, its struct. volta_runtime.ops.formats has
// the same rows.
#define VOLTA_FORMATS(X)         \
  X(0, nvfp4, Nvfp4)             \
  X(1, mxfp4, Mxfp4)             \
  X(2, fp4_f32, Fp4Float)        \
  X(3, fp4_bf16, Fp4Bfloat)      \
  X(4, int4, Int4)               \
  X(5, int4_g32, Int4Zero<32>)   \
  X(6, int4_g64, Int4Zero<64>)   \
  X(7, int4_g128, Int4Zero<128>) \
  X(8, q4_1, Q4_1)               \
  X(9, q4_k, Q4_K)               \
  X(10, q5_k, Q5_K)              \
  X(11, q6_k, Q6_K)              \
  X(12, q8_0, Q8_0)              \
  X(13, fp8, Fp8)                \
  X(14, fp8_block, Fp8Block)

}  // namespace volta
