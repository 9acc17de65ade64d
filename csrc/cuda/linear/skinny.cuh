// y = x W^T for 3 to 32 rows of x, with W packed: tensor cores, still bound by reading W.
//
// Work is shared out as in gemv.cuh, a warp one tile of 32 rows. A block of 32 columns is decoded
// to FP16, a lane its row, and goes through shared memory into the fragments of wmma 8x32x16, which
// are HMMA.884 on sm_70. Sums are FP32 throughout. Where a format has factors, FP16 holds the
// weights after their row's power of two, half_factor.
#pragma once

#include <cuda_runtime.h>
#include <mma.h>

#include "activations.cuh"
#include "epilogue.cuh"
#include "launch.h"
#include "stream.cuh"

namespace volta {

// A lane's FP16 weights of eight columns.
template <typename F>
__device__ __forceinline__ uint4 half_weights(const uint4 (&codes)[F::kVecs], const uint32_t* high,
                                              const Meta<F>& meta, unsigned block, int eight,
                                              Pair factor, Pair minimum) {
  Pair w[4];
  decode<F>(reinterpret_cast<const uint32_t*>(codes), high, meta.words, block, eight, w);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (F::kHasMin)
      w[i] = __hfma2(w[i], factor, minimum);
    else if (F::kHasFactor)
      w[i] = pair_mul(w[i], factor);
  }
  const auto* words = reinterpret_cast<const uint32_t*>(w);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// A number that FP16 holds: factors beyond it belong to weights of zero.
__device__ __forceinline__ Pair pair_of_float(float x) {
  return __float2half2_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}

template <typename F, int kMTiles>
struct SkinnyShape {
  static constexpr int kM = 8 * kMTiles;
  static constexpr int kMaxWarps = kMTiles > 2 ? 2 : 4;
  static constexpr bool kWide = F::kHasMin || F::kHighVecs > 0 || F::kVecs > 1 || F::kMetaWords > 2;
  static constexpr int kMinBlocks = (kMTiles == 1 ? 4 : 3) - kWide;
  // Blocks of codes in flight.
  static constexpr int kDepth = kMTiles == 4 ? 1 : kWide ? 2 : 4;
  static_assert(kStep / kBlock % kDepth == 0, "a block's registers are the same in every step");
  static constexpr int kAhead = 1;  // chunks that are on their way into the L2 cache
  // Rows in shared memory are longer by 16 bytes, which keeps their vectors in different banks.
  static constexpr int kXStride = kStep + 8, kWStride = kBlock + 8;  // in FP16
};

template <typename F, int kMTiles>
__global__ void __launch_bounds__(SkinnyShape<F, kMTiles>::kMaxWarps* kTileRows,
                                  SkinnyShape<F, kMTiles>::kMinBlocks) skinny(LinearArgs args) {
  using namespace nvcuda;
  using L = TileLayout<F>;
  using Shape = SkinnyShape<F, kMTiles>;
  constexpr int kM = Shape::kM, kDepth = Shape::kDepth, kMaxWarps = Shape::kMaxWarps;
  constexpr int kAhead = Shape::kAhead;
  constexpr int kBlocks = kStep / kBlock;
  constexpr int kXVectors = kM * kStep / 8 / kTileRows;  // that a lane stages

  struct Stage {
    __half x[kM][Shape::kXStride];
    __half w[2][kTileRows][Shape::kWStride];
  };
  union Shared {
    Stage stage[kMaxWarps];
    float sums[kMaxWarps][kM][kTileRows];
  };
  __shared__ __align__(128) Shared shared;

  const int lane = threadIdx.x % kTileRows, warp = threadIdx.x / kTileRows;
  const int warps_k = 1 << args.log_warps_k;
  const int warp_k = warp % warps_k, warp_n = warp >> args.log_warps_k;
  const int tile_n = blockIdx.x * (blockDim.x / kTileRows >> args.log_warps_k) + warp_n;
  const Assigned assigned = assigned_rows(args, kM);
  if (assigned.expert < 0) return;

  wmma::fragment<wmma::accumulator, 8, 32, 16, float> sum[kMTiles];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) wmma::fill_fragment(sum[m], 0.0f);

  float scale = 0.0f;
  const int chunk_end = split_chunk(args, blockIdx.y + 1);
  int chunk = split_chunk(args, blockIdx.y) + warp_k;
  if (chunk < chunk_end && tile_n < args.epilogue.tiles) {
    float half_factor = 1.0f;
    scale = row_scale(args, assigned, tile_n, lane) * F::kUnit;
    if (F::kHasFactor) {
      const int64_t row =
          (static_cast<int64_t>(assigned.expert) * args.epilogue.tiles + tile_n) * kTileRows + lane;
      half_factor = args.half_factor[row] * F::kHalfScale;
      scale /= half_factor;
    }
    const uint8_t* tile = args.data + assigned.expert * args.routing.data_stride +
                          (static_cast<int64_t>(tile_n) * args.chunks + chunk) * L::kBytes;
    const int64_t to_next = static_cast<int64_t>(L::kBytes) << args.log_warps_k;

    // Codes of a block `ahead` of the first of a step, if there is one.
    const auto read_ahead = [&](int step, int ahead, uint4(&out)[F::kVecs]) {
      const Ahead<F> at(step, ahead);
      if (at.chunks == 0 || chunk + (at.chunks << args.log_warps_k) < chunk_end)
        load_block<F>(tile + at.chunks * to_next + at.block * L::kBlockBytes, lane, out);
    };
    uint4 codes[kDepth][F::kVecs];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) read_ahead(0, d, codes[d]);
#pragma unroll
    for (int a = 1; a <= kAhead; ++a)
      if (chunk + (a << args.log_warps_k) < chunk_end) prefetch_tile<F>(tile + a * to_next, lane);
    Meta<F> meta, next_meta;
    next_meta.load(tile, lane);
    High<F> high;

    // Vector v of 8 columns belongs to row v / 16, so that 16 lanes read a row.
    const __half* x_rows[kXVectors];
#pragma unroll
    for (int i = 0; i < kXVectors; ++i) {
      const int row = (lane + i * kTileRows) / 16;
      x_rows[i] = row < assigned.rows ? args.x + x_row(args, assigned, row) * args.k : nullptr;
    }
    uint4 x[kXVectors];
    const auto read_x = [&](int column) {
#pragma unroll
      for (int i = 0; i < kXVectors; ++i)
        x[i] = read_columns(x_rows[i], column + lane % 16 * 8, args.k);
    };
    read_x(chunk * F::kChunk);

    Stage& stage = shared.stage[warp];
    for (; chunk < chunk_end; chunk += warps_k) {
      const bool more = chunk + warps_k < chunk_end;
      meta = next_meta;
      if (more) next_meta.load(tile + to_next, lane);
      if (kAhead > 0 && chunk + (kAhead + 1 << args.log_warps_k) < chunk_end)
        prefetch_tile<F>(tile + (kAhead + 1) * to_next, lane);
#pragma unroll 1
      for (int step = 0; step < L::kSteps; ++step) {
        const bool last_step = step + 1 == L::kSteps;
        high.load(tile, step, lane);
        __syncwarp();  // the last step's x is done with
#pragma unroll
        for (int i = 0; i < kXVectors; ++i) {
          const int vector = lane + i * kTileRows;
          *reinterpret_cast<uint4*>(&stage.x[vector / 16][vector % 16 * 8]) = x[i];
        }
        if (!last_step)
          read_x(chunk * F::kChunk + (step + 1) * kStep);
        else if (more)
          read_x((chunk + warps_k) * F::kChunk);

#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const unsigned block = step * kBlocks + b;
          Pair factor = pair_of_bits(0), minimum = pair_of_bits(0);
          if (F::kHasFactor)
            factor = pair_of_float(F::factor(meta.words, meta.tail, block) * half_factor);
          if (F::kHasMin)
            minimum = pair_of_float(F::minimum(meta.words, meta.tail, block) * half_factor);
          auto& w = stage.w[b % 2];
#pragma unroll
          for (int eight = 0; eight < kBlock / 8; ++eight)
            *reinterpret_cast<uint4*>(&w[lane][eight * 8]) =
                half_weights<F>(codes[b % kDepth], high.of(b), meta, block, eight, factor, minimum);
          __syncwarp();

          read_ahead(step, b + kDepth, codes[b % kDepth]);

#pragma unroll
          for (int k = 0; k < kBlock; k += 16) {
            wmma::fragment<wmma::matrix_b, 8, 32, 16, __half, wmma::col_major> b_fragment;
            wmma::load_matrix_sync(b_fragment, &w[0][k], Shape::kWStride);
#pragma unroll
            for (int m = 0; m < kMTiles; ++m) {
              wmma::fragment<wmma::matrix_a, 8, 32, 16, __half, wmma::row_major> a_fragment;
              wmma::load_matrix_sync(a_fragment, &stage.x[8 * m][b * kBlock + k], Shape::kXStride);
              wmma::mma_sync(sum[m], a_fragment, b_fragment, sum[m]);
            }
          }
        }
      }
      tile += to_next;
    }
  }

  __syncthreads();  // x and w are done with
#pragma unroll
  for (int m = 0; m < kMTiles; ++m)
    wmma::store_matrix_sync(&shared.sums[warp][8 * m][0], sum[m], kTileRows, wmma::mem_row_major);
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m) shared.sums[warp][m][lane] *= scale;
  __syncthreads();
  finish<kM, kMaxWarps, kTileRows>(args, shared.sums, assigned);
}

template <typename F, int kMTiles>
int launch_skinny(const LinearArgs& args, const LinearPlan& plan, cudaStream_t stream) {
  return launch_linear(skinny<F, kMTiles>, args, plan, SkinnyShape<F, kMTiles>::kMaxWarps, 1,
                       stream);
}

}  // namespace volta
