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

// Calls use(place) for every row of every tile and block, on so many threads.
template <typename F, typename Use>
void for_each_place(int64_t n, int64_t k, int threads, const Use& use) {
  parallel_for(tiles_of(n), threads, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile)
      for (int64_t chunk = 0; chunk < chunks_of<F>(k); ++chunk)
        for (int row = 0; row < kTileRows; ++row)
          for (int block = 0; block < F::kChunk / kBlock; ++block)
            use(Place<F>{tile, chunk, row, block});
  });
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_pack_cpu(int format, const uint8_t* codes, const void* scales_a, const void* scales_b,
                   const void* scales_c, const void* scales_d, uint8_t* data, int64_t n, int64_t k,
                   int threads) {
  const Arrays<const void> arrays{{scales_a, scales_b, scales_c, scales_d}};
  return with_format(format, n, k, [&](auto f) {
    for_each_place<decltype(f)>(n, k, threads,
                                [&](const auto& p) { pack_place(p, codes, arrays, data, n, k); });
    return kOk;
  });
}

int volta_unpack_cpu(int format, const uint8_t* data, uint8_t* codes, void* scales_a,
                     void* scales_b, void* scales_c, void* scales_d, int64_t n, int64_t k,
                     int threads) {
  const Arrays<void> arrays{{scales_a, scales_b, scales_c, scales_d}};
  return with_format(format, n, k, [&](auto f) {
    for_each_place<decltype(f)>(n, k, threads,
                                [&](const auto& p) { unpack_place(p, data, codes, arrays, n, k); });
    return kOk;
  });
}

int volta_half_factor_cpu(int format, const uint8_t* data, float* factor, int64_t n, int64_t k,
                          int threads) {
  const int64_t rows = tiles_of(n) * kTileRows;
  return with_format(format, n, k, [&](auto f) {
    using F = decltype(f);
    std::fill_n(factor, rows, 0.0f);  // at first the largest weight
    for_each_place<F>(n, k, threads, [&](const Place<F>& p) {
      float weights[kBlock];
      block_weights<F>(data + tile_at(p, k), p.row, p.block, weights);
      float& largest = factor[row_of(p)];
      for (int i = 0; i < count_of(p, n, k); ++i)
        largest = std::max(largest, std::fabs(weights[i]));
    });
    for (int64_t row = 0; row < rows; ++row) factor[row] = half_factor_of(factor[row]);
    return kOk;
  });
}

int volta_dequantize_cpu(int format, const uint8_t* data, const float* row_factor, void* w,
                         int64_t n, int64_t k, int threads) {
  auto* out = static_cast<float*>(w);
  return with_format(format, n, k, [&](auto f) {
    using F = decltype(f);
    for_each_place<F>(n, k, threads, [&](const Place<F>& p) {
      float weights[kBlock];
      block_weights<F>(data + tile_at(p, k), p.row, p.block, weights);
      const int64_t row = row_of(p);
      for (int i = 0; i < count_of(p, n, k); ++i)
        out[row * k + column_of(p) + i] = weights[i] * row_factor[row];
    });
    return kOk;
  });
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
  return with_format(format, n, k, [&](auto) {
    const PackedMatrix w{data, row_scale, n, k};
    parallel_for(tiles_of(n), threads, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) table[format](w, x, y, m, tile);
    });
    return kOk;
  });
}
