// y = x W^T for one or two rows of x, with W packed: bound by reading W once.
//
// A lane has a row of W, a warp kRows tiles of 32 rows. A block's warps share out rows and K
// (warps_k of them along K), blocks share K further (gridDim.y); sums meet in shared memory and, of
// several blocks, in a workspace where the last to arrive adds them up in order, so that the result
// does not depend on timing.
//
// Sums of up to 128 columns are taken in FP16 pairs: each row of x is first brought to the format's
// exponent, 128 columns at a time, by a power of two that the FP32 sum undoes. That keeps products
// within FP16 for any x and any scale, and no weight is rounded (Q6_K: see there).
#pragma once

#include <cuda_runtime.h>

#include "activations.cuh"
#include "epilogue.cuh"
#include "launch.h"
#include "stream.cuh"

namespace volta {

// kRows tiles of a warp share what is read of x; with one there are warps enough for few rows of W.
template <typename F, int kM, int kRows>
struct GemvShape {
  static constexpr int kMaxWarps = kRows == 1 ? 16 : 8;
  static constexpr bool kWide = F::kHasMin || F::kHighVecs > 0 || F::kVecs > 1;
  static constexpr int kMinBlocks = kRows == 1 ? 1 : kM == 1 && !kWide ? 3 : 2;
  // Blocks of codes in flight, in what registers the other numbers leave; a step has four.
  static constexpr int kDepth = kRows == 1 ? 4 / F::kVecs : kWide || kM == 1 ? 2 : 4;
  static_assert(kStep / kBlock % kDepth == 0, "a block's registers are the same in every step");
};

template <int kRows, int kM>
__device__ __forceinline__ void set_zero(Pair (&sums)[kRows][kM]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int m = 0; m < kM; ++m) sums[r][m] = pair_of_bits(0);
}

template <typename F, int kM, int kRows>
__global__ void __launch_bounds__(GemvShape<F, kM, kRows>::kMaxWarps* kWarp,
                                  GemvShape<F, kM, kRows>::kMinBlocks) gemv(LinearArgs args) {
  using L = TileLayout<F>;
  using X = XStep<F, kM>;
  constexpr int kMaxWarps = GemvShape<F, kM, kRows>::kMaxWarps;
  constexpr int kDepth = GemvShape<F, kM, kRows>::kDepth;
  constexpr int kBlocks = kStep / kBlock;

  union Shared {
    typename X::Shared x[kMaxWarps][2];
    float sums[kMaxWarps][kM][kRows * kTileRows];
  };
  __shared__ Shared shared;

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps_k = 1 << args.log_warps_k;
  const int warp_k = warp % warps_k, warp_n = warp >> args.log_warps_k;
  const int first_tile = (blockIdx.x * (blockDim.x / kWarp >> args.log_warps_k) + warp_n) * kRows;

  const Assigned assigned = assigned_rows(args, kM);
  if (assigned.expert < 0) return;
  const uint8_t* data = args.data + assigned.expert * args.routing.data_stride;
  const __half* x_rows[X::kPerLane];
#pragma unroll
  for (int i = 0; i < X::kPerLane; ++i) {
    const int row = (lane + i * kWarp) / 16;
    x_rows[i] = row < assigned.rows ? args.x + x_row(args, assigned, row) * args.k : nullptr;
  }

  float scale[kRows];
  float total[kRows][kM];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // Tiles beyond the last repeat it; their sums are not used.
    const int tile = min(first_tile + r, args.epilogue.tiles - 1);
    scale[r] = row_scale(args, assigned, tile, lane) * F::kUnit;
#pragma unroll
    for (int m = 0; m < kM; ++m) total[r][m] = 0;
  }

  const int chunk_end = split_chunk(args, blockIdx.y + 1);
  int chunk = split_chunk(args, blockIdx.y) + warp_k;
  if (chunk < chunk_end && first_tile < args.epilogue.tiles) {
    const uint8_t* tile[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int t = min(first_tile + r, args.epilogue.tiles - 1);
      tile[r] = data + (static_cast<int64_t>(t) * args.chunks + chunk) * L::kBytes;
    }
    const int64_t to_next = static_cast<int64_t>(L::kBytes) << args.log_warps_k;

    // Codes of a block `ahead` of the first of a step, if there is one.
    const auto read_ahead = [&](int step, int ahead, int r, uint4(&out)[F::kVecs]) {
      const Ahead<F> at(step, ahead);
      if (at.chunks == 0 || chunk + (at.chunks << args.log_warps_k) < chunk_end)
        load_block<F>(tile[r] + at.chunks * to_next + at.block * L::kBlockBytes, lane, out);
    };
    uint4 codes[kDepth][kRows][F::kVecs];
    Meta<F> meta[kRows], next_meta[kRows];
    High<F> high[kRows];

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) read_ahead(0, d, r, codes[d][r]);
      next_meta[r].load(tile[r], lane);
    }
    X x;
    x.read(x_rows, chunk * F::kChunk, args.k, lane);

    int buffer = 0;
    for (; chunk < chunk_end; chunk += warps_k) {
      const bool more = chunk + warps_k < chunk_end;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        meta[r] = next_meta[r];
        if (more) next_meta[r].load(tile[r] + to_next, lane);
      }
#pragma unroll 1
      for (int step = 0; step < L::kSteps; ++step) {
        const bool last_step = step + 1 == L::kSteps;
#pragma unroll
        for (int r = 0; r < kRows; ++r) high[r].load(tile[r], step, lane);

        typename X::Shared& xs = shared.x[warp][buffer];
        buffer ^= 1;
        x.store(xs, lane);
        if (!last_step)
          x.read(x_rows, chunk * F::kChunk + (step + 1) * kStep, args.k, lane);
        else if (more)
          x.read(x_rows, (chunk + warps_k) * F::kChunk, args.k, lane);
        __syncwarp();

        Pair sum[kRows][kM], part[kRows][kM];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const unsigned block = step * kBlocks + b;
          if (b % F::kScaleBlocks == 0) set_zero(sum);
#pragma unroll
          for (int eight = 0; eight < kBlock / 8; ++eight) {
            // A scale of 16 columns goes to their sum, of which there are fewer than weights.
            Pair(&to)[kRows][kM] = F::kHasScale ? part : sum;
            if (F::kHasScale && eight % 2 == 0) set_zero(part);
            Pair w[kRows][4];
#pragma unroll
            for (int r = 0; r < kRows; ++r)
              F::raw(reinterpret_cast<const uint32_t*>(codes[b % kDepth][r]), high[r].of(b),
                     meta[r].words, block, eight, w[r]);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
              const uint4 v = xs.x[m][b * (kBlock / 8) + eight];
              const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
              for (int r = 0; r < kRows; ++r) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                  to[r][m] = __hfma2(w[r][i], pair_of_bits(words[i]), to[r][m]);
                if (F::kHasScale && eight % 2 == 1)
                  sum[r][m] =
                      __hfma2(part[r][m], F::scale(meta[r].words, block, eight / 2), sum[r][m]);
              }
            }
          }

          // A later block into the registers that are free now.
#pragma unroll
          for (int r = 0; r < kRows; ++r) read_ahead(step, b + kDepth, r, codes[b % kDepth][r]);

#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (b % F::kScaleBlocks == F::kScaleBlocks - 1) {
              const float factor = F::factor(meta[r].words, meta[r].tail, block);
#pragma unroll
              for (int m = 0; m < kM; ++m) {
                const __half both = __hadd(__low2half(sum[r][m]), __high2half(sum[r][m]));
                total[r][m] = fmaf(__half2float(both), factor * xs.back[m], total[r][m]);
              }
            }
            if (F::kHasMin) {
              const float minimum = F::minimum(meta[r].words, meta[r].tail, block);
#pragma unroll
              for (int m = 0; m < kM; ++m) total[r][m] = fmaf(minimum, xs.sums[m][b], total[r][m]);
            }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) tile[r] += to_next;
    }
  }

  __syncthreads();  // x is done with
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int m = 0; m < kM; ++m)
      shared.sums[warp][m][r * kTileRows + lane] = total[r][m] * scale[r];
  __syncthreads();
  finish<kM, kMaxWarps, kRows * kTileRows>(args, shared.sums, assigned);
}

template <typename F, int kM, int kRows>
int launch_gemv(const LinearArgs& args, const LinearPlan& plan, cudaStream_t stream) {
  return launch_linear(gemv<F, kM, kRows>, args, plan, GemvShape<F, kM, kRows>::kMaxWarps, kRows,
                       stream);
}

}  // namespace volta
