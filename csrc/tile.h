// Where the words of a row lie in a tile of formats.h, and a block of 32 columns decoded from
// there.
#pragma once

#include <cmath>

#include "formats.h"

namespace volta {

constexpr int kBlockPairs = kBlock / 2;

struct alignas(16) Vec {
  uint32_t word[4];
};

// Offsets in bytes from the start of a tile.
template <typename F>
VOLTA_PACK int codes_at(int row, int block, int vec) {
  return ((block * F::kVecs + vec) * kTileRows + row) * 16;
}

// word: counted over the row's high bits of the whole chunk.
template <typename F>
VOLTA_PACK int high_at(int row, int word) {
  return codes_at<F>(0, F::kChunk / kBlock, 0) + (word / 4 * kTileRows + row) * 16 + word % 4 * 4;
}

template <typename F>
VOLTA_PACK int meta_at(int row) {
  return high_at<F>(0, 4 * F::kHighVecs) + row * F::kMetaWords * 4;
}

template <typename F>
VOLTA_PACK int tail_at(int row) {
  return meta_at<F>(kTileRows) + row * 2;
}

// Words of high bits that a row has for a block, which are bits that a code has beyond its fourth.
template <typename F>
VOLTA_PACK constexpr int high_words() {
  return F::kHighVecs * 4 * kBlock / F::kChunk;
}

// The w of a block, pair i the columns 2i and 2i + 1: weights are scale * (kUnit * w) + minimum.
// The order matters: the unit times a large scale may be beyond FP32.
template <typename F>
struct Block {
  Pair w[kBlockPairs];
  float scale, minimum;
};

template <typename F>
VOLTA_DECODE Block<F> decode_block(const uint8_t* tile, int row, int block) {
  uint32_t codes[4 * F::kVecs];
#pragma unroll
  for (int v = 0; v < F::kVecs; ++v) {
    const Vec vec = *reinterpret_cast<const Vec*>(tile + codes_at<F>(row, block, v));
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[4 * v + i] = vec.word[i];
  }
  const auto* high =
      reinterpret_cast<const uint32_t*>(tile + high_at<F>(row, block * high_words<F>()));
  const auto* meta = reinterpret_cast<const uint32_t*>(tile + meta_at<F>(row));
  const uint32_t tail =
      F::kTail ? *reinterpret_cast<const uint16_t*>(tile + tail_at<F>(row)) : uint32_t{0};
  Block<F> out;
#pragma unroll
  for (int eight = 0; eight < 4; ++eight)
    decode<F>(codes, high, meta, block, eight, out.w + 4 * eight);
  out.scale = F::factor(meta, tail, block);
  out.minimum = F::minimum(meta, tail, block);
  return out;
}

#ifndef __CUDACC__
// The block's weights before their row's scale.
template <typename F>
static inline void block_weights(const uint8_t* tile, int row, int block, float out[kBlock]) {
  const Block<F> decoded = decode_block<F>(tile, row, block);
  for (int i = 0; i < kBlockPairs; ++i) {
    out[2 * i] = decoded.scale * (F::kUnit * decoded.w[i].low) + decoded.minimum;
    out[2 * i + 1] = decoded.scale * (F::kUnit * decoded.w[i].high) + decoded.minimum;
  }
}
#endif

// The power of two that brings numbers up to `largest` below 2^15, where FP16 holds most of them
// with all their bits; 1 where there are none but zeros.
VOLTA_DECODE float half_factor_of(float largest) {
  int exponent = 0;  // largest = fraction * 2^exponent with a fraction of at least 1/2
  if (!(largest > 0.0f)) return 1.0f;
  frexpf(largest, &exponent);
  return ldexpf(1.0f, 15 - exponent < 127 ? 15 - exponent : 127);
}

}  // namespace volta
