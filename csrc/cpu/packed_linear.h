// The product with a packed matrix, generic over the formats. Each instruction set compiles it into
// a table of its own; the unnamed namespace keeps their code apart.
#pragma once

#include <algorithm>

#include "../tile.h"
#include "packed.h"

namespace volta {
namespace {

constexpr int kLanes = 8;  // partial sums of a row, so that the compiler has vectors of them

// A block's weights times the x of kM rows, added to their lanes. stride: from a row of x to the
// next.
template <int kM>
inline void add_block(const float* weights, const float* x, int64_t stride, float (*sums)[kLanes]) {
  for (int i = 0; i < kM; ++i)
    for (int c = 0; c < kBlock; c += kLanes)
      for (int lane = 0; lane < kLanes; ++lane)
        sums[i][lane] += weights[c + lane] * x[i * stride + c + lane];
}

template <typename F, int kM>
void linear_rows(const PackedMatrix& w, const float* x, float* y, int64_t tile) {
  const int64_t chunks = (w.k + F::kChunk - 1) / F::kChunk, first = tile * kTileRows;
  const int rows = static_cast<int>(std::min<int64_t>(kTileRows, w.n - first));
  for (int row = 0; row < rows; ++row) {
    float sums[kM][kLanes] = {};
    for (int64_t column = 0; column < w.k; column += kBlock) {
      const int64_t chunk = column / F::kChunk;
      const uint8_t* at = w.data + (tile * chunks + chunk) * tile_bytes<F>();
      float weights[kBlock];
      block_weights<F>(at, row, static_cast<int>(column % F::kChunk / kBlock), weights);
      if (column + kBlock <= w.k) {
        add_block<kM>(weights, x + column, w.k, sums);
      } else {
        float rest[kM][kBlock] = {};
        for (int i = 0; i < kM; ++i) std::copy(x + i * w.k + column, x + (i + 1) * w.k, rest[i]);
        add_block<kM>(weights, rest[0], kBlock, sums);
      }
    }
    for (int i = 0; i < kM; ++i) {
      float sum = 0;
      for (int lane = 0; lane < kLanes; ++lane) sum += sums[i][lane];
      y[i * w.n + first + row] = sum * w.row_scale[first + row];
    }
  }
}

// Eight rows of x cost one decode, as one does; numbers between are made of 4, 2 and 1.
template <typename F>
void linear_tile(const PackedMatrix& w, const float* x, float* y, int64_t m, int64_t tile) {
  const auto take = [&](auto kernel, int64_t rows) {
    for (; m >= rows; m -= rows, x += rows * w.k, y += rows * w.n) kernel(w, x, y, tile);
  };
  take(linear_rows<F, 8>, 8);
  take(linear_rows<F, 4>, 4);
  take(linear_rows<F, 2>, 2);
  take(linear_rows<F, 1>, 1);
}

}  // namespace

#define VOLTA_LINEAR_TILE(number, name, F) linear_tile<F>,
#define VOLTA_PACKED_TABLE {VOLTA_FORMATS(VOLTA_LINEAR_TILE)}

}  // namespace volta
