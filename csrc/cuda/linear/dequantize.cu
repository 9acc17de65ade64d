// W in FP16, row-major, for a product of many rows; and the powers of two that let FP16 hold it.
#include <cuda_fp16.h>

#include "packing.cuh"

namespace volta {
namespace {

// A tile has its rows side by side, W one after the other: the tile turns in shared memory, so that
// both sides move whole lines. The vector more in a row keeps a warp's writes out of one bank.
template <typename F>
__global__ void __launch_bounds__(F::kChunk)
    dequantize(const uint8_t* __restrict__ data, const float* __restrict__ row_factor,
               uint4* __restrict__ w, int64_t n, int64_t k) {
  constexpr int kVecs = F::kChunk / 8;  // of 8 weights
  __shared__ uint4 turned[kTileRows][kVecs + 1];

  const Place<F> p = place_of_thread<F>();
  const Block<F> block = decode_block<F>(data + tile_at(p, k), p.row, p.block);
  const float factor = row_factor[row_of(p)];
  const float scale = block.scale * factor, minimum = block.minimum * factor;
#pragma unroll
  for (int v = 0; v < kBlock / 8; ++v) {
    union {
      __half2 pair[4];
      uint4 all;
    } out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(block.w[4 * v + i]);
      out.pair[i] = __floats2half2_rn(fmaf(F::kUnit * pair.x, scale, minimum),
                                      fmaf(F::kUnit * pair.y, scale, minimum));
    }
    turned[p.row][p.block * (kBlock / 8) + v] = out.all;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kTileRows * kVecs / F::kChunk; ++i) {
    const int at = threadIdx.x + i * F::kChunk;
    const int64_t row = p.tile * kTileRows + at / kVecs;
    const int64_t column = p.chunk * F::kChunk + at % kVecs * 8;
    if (row < n && column < k) w[(row * k + column) / 8] = turned[at / kVecs][at % kVecs];
  }
}

// The warps of a block share a tile's columns, a lane has a row.
constexpr int kWarps = 8;

template <typename F>
__global__ void __launch_bounds__(kWarps* kTileRows)
    half_factor(const uint8_t* __restrict__ data, float* __restrict__ factor, int64_t k) {
  __shared__ float largest_of[kWarps][kTileRows];
  const int row = threadIdx.x % kTileRows, warp = threadIdx.x / kTileRows;
  float largest = 0.0f;
  for (int64_t at = warp; at * kBlock < k; at += kWarps) {
    constexpr int kBlocks = F::kChunk / kBlock;
    const Place<F> p{blockIdx.x, at / kBlocks, row, static_cast<int>(at % kBlocks)};
    const Block<F> block = decode_block<F>(data + tile_at(p, k), p.row, p.block);
#pragma unroll
    for (int i = 0; i < kBlockPairs; ++i) {
      const float2 pair = __half22float2(block.w[i]);
      largest = fmaxf(largest, fabsf(fmaf(F::kUnit * pair.x, block.scale, block.minimum)));
      largest = fmaxf(largest, fabsf(fmaf(F::kUnit * pair.y, block.scale, block.minimum)));
    }
  }
  largest_of[warp][row] = largest;
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int i = 1; i < kWarps; ++i) largest = fmaxf(largest, largest_of[i][row]);
  factor[static_cast<int64_t>(blockIdx.x) * kTileRows + row] = half_factor_of(largest);
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_dequantize_cuda(int format, const uint8_t* data, const float* row_factor, void* w,
                          int64_t n, int64_t k, cudaStream_t stream) {
  return with_format(format, n, k, [&](auto f) {
    using F = decltype(f);
    return launch_on_places<F>(dequantize<F>, n, k, stream, data, row_factor,
                               static_cast<uint4*>(w), n, k);
  });
}

int volta_half_factor_cuda(int format, const uint8_t* data, float* factor, int64_t n, int64_t k,
                           cudaStream_t stream) {
  return with_format(format, n, k, [&](auto f) -> int {
    using F = decltype(f);
    half_factor<F>
        <<<static_cast<unsigned>(tiles_of(n)), kWarps * kTileRows, 0, stream>>>(data, factor, k);
    return cudaGetLastError();
  });
}
