// Packing, unpacking and dequantising on the CPU, and the choice of the product: a function a
// format, called through a table by the format's number.
#include "packed.h"

#include <algorithm>
#include <cmath>

#include "../kernels.h"
#include "../packing.h"
#include "thread_pool.h"

namespace volta {
namespace {

int64_t tiles_of(int64_t n) { return (n + kTileRows - 1) / kTileRows; }

template <typename F>
int64_t chunks_of(int64_t k) {
  return (k + F::kChunk - 1) / F::kChunk;
}

// Codes of a block that there are.
int count_of(int64_t k, int64_t column) {
  return static_cast<int>(std::clamp<int64_t>(k - column, 0, kBlock));
}

struct Sizes {
  int64_t n, k;
  int threads;
};

// Calls use(F{}) for the format and gives kOk, where there is one and it takes such a k.
template <typename Use>
int with_format(int format, const Sizes& s, const Use& use) {
  switch (format) {
#define VOLTA_CASE(number, name, F)                                              \
  case number:                                                                   \
    if (s.n < 1 || s.k < 1 || s.k % source(F{}).multiple != 0) return kBadShape; \
    use(F{});                                                                    \
    return kOk;
    VOLTA_FORMATS(VOLTA_CASE)
#undef VOLTA_CASE
    default:
      return kBadFormat;
  }
}

// Calls use(tile's bytes, number of the tile, number of the chunk) for all of them.
template <typename F, typename Byte, typename Use>
void for_each_tile(Byte* data, const Sizes& s, const Use& use) {
  const int64_t chunks = chunks_of<F>(s.k);
  parallel_for(tiles_of(s.n), s.threads, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile)
      for (int64_t chunk = 0; chunk < chunks; ++chunk)
        use(data + (tile * chunks + chunk) * tile_bytes<F>(), tile, chunk);
  });
}

template <typename F>
void pack(const uint8_t* codes, const Arrays<const void>& arrays, uint8_t* data, const Sizes& s) {
  for_each_tile<F>(data, s, [&](uint8_t* at, int64_t tile, int64_t chunk) {
    for (int row = 0; row < kTileRows; ++row) {
      const int64_t n_row = tile * kTileRows + row;
      const bool there = n_row < s.n;
      for (int block = 0; block < F::kChunk / kBlock; ++block) {
        const int64_t column = chunk * F::kChunk + block * kBlock;
        const int count = there ? count_of(s.k, column) : 0;
        pack_codes<F>(codes + (count ? n_row * s.k + column : 0), count, at, row, block);
      }
      pack_scales<F>(arrays, there ? n_row : -1, chunk, s.k, at, row);
    }
  });
}

template <typename F>
void unpack(const uint8_t* data, uint8_t* codes, const Arrays<void>& arrays, const Sizes& s) {
  for_each_tile<F>(data, s, [&](const uint8_t* at, int64_t tile, int64_t chunk) {
    const int64_t first = tile * kTileRows;
    for (int row = 0; row < std::min<int64_t>(kTileRows, s.n - first); ++row) {
      for (int block = 0; block < F::kChunk / kBlock; ++block) {
        const int64_t column = chunk * F::kChunk + block * kBlock;
        if (column < s.k)
          unpack_codes<F>(at, row, block, codes + (first + row) * s.k + column,
                          count_of(s.k, column));
      }
      unpack_scales<F>(at, row, arrays, first + row, chunk, s.k);
    }
  });
}

// Calls use(row, column, 32 weights before the row's scale, how many of them there are).
template <typename F, typename Use>
void for_each_block(const uint8_t* data, const Sizes& s, const Use& use) {
  for_each_tile<F>(data, s, [&](const uint8_t* at, int64_t tile, int64_t chunk) {
    for (int row = 0; row < kTileRows; ++row)
      for (int block = 0; block < F::kChunk / kBlock; ++block) {
        const int64_t column = chunk * F::kChunk + block * kBlock;
        float weights[kBlock];
        block_weights<F>(at, row, block, weights);
        use(tile * kTileRows + row, column, weights, count_of(s.k, column));
      }
  });
}

template <typename F>
void half_factor(const uint8_t* data, float* factor, const Sizes& s) {
  std::fill_n(factor, tiles_of(s.n) * kTileRows, 0.0f);  // at first the largest weight
  for_each_block<F>(data, s, [&](int64_t row, int64_t, const float* weights, int count) {
    for (int i = 0; i < count; ++i) factor[row] = std::max(factor[row], std::fabs(weights[i]));
  });
  for (int64_t row = 0; row < tiles_of(s.n) * kTileRows; ++row)
    factor[row] = half_factor_of(factor[row]);
}

template <typename F>
void dequantize(const uint8_t* data, const float* row_factor, float* w, const Sizes& s) {
  for_each_block<F>(data, s, [&](int64_t row, int64_t column, const float* weights, int count) {
    if (row >= s.n) return;
    for (int i = 0; i < count; ++i) w[row * s.k + column + i] = weights[i] * row_factor[row];
  });
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_pack_cpu(int format, const uint8_t* codes, const void* scales_a, const void* scales_b,
                   const void* scales_c, const void* scales_d, uint8_t* data, int64_t n, int64_t k,
                   int threads) {
  const Sizes s{n, k, threads};
  const Arrays<const void> arrays{{scales_a, scales_b, scales_c, scales_d}};
  return with_format(format, s, [&](auto f) { pack<decltype(f)>(codes, arrays, data, s); });
}

int volta_unpack_cpu(int format, const uint8_t* data, uint8_t* codes, void* scales_a,
                     void* scales_b, void* scales_c, void* scales_d, int64_t n, int64_t k,
                     int threads) {
  const Sizes s{n, k, threads};
  const Arrays<void> arrays{{scales_a, scales_b, scales_c, scales_d}};
  return with_format(format, s, [&](auto f) { unpack<decltype(f)>(data, codes, arrays, s); });
}

int volta_half_factor_cpu(int format, const uint8_t* data, float* factor, int64_t n, int64_t k,
                          int threads) {
  const Sizes s{n, k, threads};
  return with_format(format, s, [&](auto f) { half_factor<decltype(f)>(data, factor, s); });
}

int volta_dequantize_cpu(int format, const uint8_t* data, const float* row_factor, void* w,
                         int64_t n, int64_t k, int threads) {
  const Sizes s{n, k, threads};
  auto* out = static_cast<float*>(w);
  return with_format(format, s, [&](auto f) { dequantize<decltype(f)>(data, row_factor, out, s); });
}

int volta_linear_cpu(int format, const float* x, const uint8_t* data, const float* row_scale,
                     float* y, int64_t m, int64_t n, int64_t k, int threads, int isa) {
  if (m < 1) return kBadShape;
  if (isa < kScalar || isa > volta_cpu_isa()) return kBadIsa;
#ifdef VOLTA_AVX2
  const PackedLinear* table = isa == kAvx2 ? kPackedAvx2 : kPackedScalar;
#else
  const PackedLinear* table = kPackedScalar;
#endif
  return with_format(format, Sizes{n, k, threads}, [&](auto) {
    const PackedMatrix w{data, row_scale, n, k};
    parallel_for(tiles_of(n), threads, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) table[format](w, x, y, m, tile);
    });
  });
}
