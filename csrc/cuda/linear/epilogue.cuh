// What comes before and after a product: which rows of x meet which matrix; sums of a block's and
// of several blocks' warps, bias, residual, SiLU(gate) * up, rounding to FP16.
#pragma once

#include <cuda_fp16.h>

#include "../../formats.h"
#include "../decoder/vector.cuh"
#include "launch.h"

namespace volta {

// The rows of x that a block of the grid's z takes, and the matrix they meet.
struct Assigned {
  int expert, rows, first;  // first: their first sorted place
};

__device__ __forceinline__ Assigned assigned_rows(const LinearArgs& args, int max_rows) {
  const Routing& routing = args.routing;
  if (routing.tile_expert == nullptr) return {0, args.m, 0};
  const int expert = routing.tile_expert[blockIdx.z];
  if (expert < 0) return {-1, 0, 0};
  const int first = routing.tile_row[blockIdx.z];
  return {expert, min(max_rows, routing.expert_offsets[expert + 1] - first), first};
}

__device__ __forceinline__ int64_t x_row(const LinearArgs& args, const Assigned& assigned,
                                         int row) {
  if (args.routing.tile_expert == nullptr) return row;
  const int assignment = args.routing.sorted[assigned.first + row];
  return args.routing.top_k > 0 ? assignment / args.routing.top_k : assignment;
}

// The chunks of K that a block of the grid's y takes begin here, and end where the next one's
// begin.
__device__ __forceinline__ int split_chunk(const LinearArgs& args, unsigned part) {
  return min(static_cast<int>(part) * args.split_chunks, args.chunks);
}

// What the sums of a lane's row are multiplied by.
__device__ __forceinline__ float row_scale(const LinearArgs& args, const Assigned& assigned,
                                           int tile, int lane) {
  const int64_t first = static_cast<int64_t>(assigned.expert) * args.epilogue.tiles;
  return __ldg(args.epilogue.row_scale + (first + tile) * kTileRows + lane);
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

// One number of y from its row's sum; gated, from the sums of gate and up.
__device__ __forceinline__ void put(const Epilogue& e, const __half* bias, int64_t out_row, int row,
                                    float value, float up) {
  int column = row, columns = e.n;
  if (e.gated) {
    column = row / (2 * kTileRows) * kTileRows + row % kTileRows;
    columns = e.n / 2;
  }
  if (column >= columns) return;
  if (bias != nullptr) value += __half2float(bias[column]);
  if (e.gated) {
    if (bias != nullptr) up += __half2float(bias[columns + column]);
    value = silu(value) * up;
  }
  const int64_t at = out_row * columns + column;
  if (e.residual != nullptr) value += __half2float(e.residual[at]);
  e.y[at] = __float2half_rn(saturated(value));
}

// Adds up the sums, times their rows' scales, of warps along K, then of blocks along K; the last
// block writes y.
template <int kM, int kMaxWarps, int kWarpRows>
__device__ __forceinline__ void finish(const LinearArgs& args,
                                       float (&sums)[kMaxWarps][kM][kWarpRows],
                                       const Assigned& assigned) {
  const unsigned warps = blockDim.x / 32, warps_k = 1u << args.log_warps_k;
  const unsigned block_rows = (warps >> args.log_warps_k) * kWarpRows;
  const unsigned count = assigned.rows * block_rows;
  const unsigned first_row = blockIdx.x * block_rows;
  const int64_t all_rows = static_cast<int64_t>(gridDim.x) * block_rows;
  const int64_t z = static_cast<int64_t>(blockIdx.z) * gridDim.y;
  // Of the warps that have a row, the first holds its sum.
  const auto sum_of = [&](unsigned m, unsigned row) -> float& {
    return sums[row / kWarpRows << args.log_warps_k][m][row % kWarpRows];
  };

  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
    const unsigned m = kM == 1 ? 0 : i / block_rows, row = kM == 1 ? i : i % block_rows;
    float sum = sum_of(m, row);
    for (unsigned w = 1; w < warps_k; ++w)
      sum += sums[(row / kWarpRows << args.log_warps_k) + w][m][row % kWarpRows];
    sum_of(m, row) = sum;
    if (gridDim.y > 1)
      args.workspace[((z + blockIdx.y) * kM + m) * all_rows + first_row + row] = sum;
  }

  if (gridDim.y > 1) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      int* counter = args.counters + blockIdx.z * gridDim.x + blockIdx.x;
      last = atomicAdd(counter, 1) == static_cast<int>(gridDim.y) - 1;
      if (last) *counter = 0;  // for the next launch
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
      const unsigned m = kM == 1 ? 0 : i / block_rows, row = kM == 1 ? i : i % block_rows;
      float sum = 0;
      for (unsigned y = 0; y < gridDim.y; ++y)
        sum += __ldcg(args.workspace + ((z + y) * kM + m) * all_rows + first_row + row);
      sum_of(m, row) = sum;
    }
  }
  __syncthreads();

  const Epilogue& e = args.epilogue;
  const __half* bias =
      e.bias == nullptr ? nullptr : e.bias + static_cast<int64_t>(assigned.expert) * e.n;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
    const unsigned m = kM == 1 ? 0 : i / block_rows, row = kM == 1 ? i : i % block_rows;
    if (first_row + row >= static_cast<unsigned>(e.tiles) * kTileRows) continue;
    if (e.gated && row / kTileRows % 2 == 1) continue;  // up, which its gate takes along
    const int64_t out_row =
        args.routing.tile_expert == nullptr ? m : args.routing.sorted[assigned.first + m];
    put(e, bias, out_row, first_row + row, sum_of(m, row),
        e.gated ? sum_of(m, row + kTileRows) : 0.0f);
  }
}

}  // namespace volta
