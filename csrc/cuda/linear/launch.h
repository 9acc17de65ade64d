// What the kernels of a product are given.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../../kernels.h"

namespace volta {

// Which rows of x belong to which matrix: assignments of tokens to experts, sorted by expert.
struct Routing {
  const int* tile_expert;     // [tiles]: expert of a tile of rows, -1 if unused; null: one matrix
  const int* tile_row;        // [tiles]: a tile's first sorted place
  const int* expert_offsets;  // [experts + 1]: each expert's first sorted place
  const int* sorted;          // [assignments]: the assignment at a sorted place
  int top_k;                  // assignments of a token; 0: x has a row for each assignment
  int64_t data_stride;        // bytes from one expert's data to the next's
};

struct Epilogue {
  const float* row_scale;  // [rows of all tiles], for each expert
  const __half* bias;      // [n], for each expert, or null
  const __half* residual;  // as y, or null
  __half* y;               // [m][n], gated [m][n / 2]
  int n, tiles;
  bool gated;  // tiles 2i and 2i + 1 of W are gate and up of columns 32i.. of y
};

struct LinearArgs {
  const uint8_t* data;
  const __half* x;
  const float* half_factor;  // [rows of all tiles], for each expert; for FP16 weights alone
  Epilogue epilogue;
  Routing routing;
  float* workspace;  // [gridDim.z][gridDim.y][rows of x][rows of all blocks], where gridDim.y > 1
  int* counters;     // [gridDim.z][gridDim.x], zero before and after
  int m, k, chunks;
  int split_chunks;  // of a block: of gridDim.y shares of K
  int log_warps_k;   // log2 of LinearPlan's warps_k
};

// How a product is spread over the GPU.
struct LinearPlan {
  int warps;       // of a block
  int warps_k;     // those of them that share rows and split K: a power of two
  int split;       // blocks that share rows and split K
  int tiles_z;     // tiles of rows of x
  int warp_tiles;  // tiles of rows of W that a warp of the GEMV takes: 1 or 2
};

template <typename Kernel>
int launch_linear(Kernel kernel, LinearArgs args, const LinearPlan& plan, int max_warps,
                  int warp_tiles, cudaStream_t stream) {
  const int warps = plan.warps < max_warps ? plan.warps : max_warps;
  args.log_warps_k = 0;
  while (2 << args.log_warps_k <= plan.warps_k && 2 << args.log_warps_k <= warps)
    ++args.log_warps_k;
  // A block has whole pairs of gate and up.
  if (args.epilogue.gated && (warps >> args.log_warps_k) * warp_tiles % 2 != 0) --args.log_warps_k;
  if (args.log_warps_k < 0) return kBadShape;
  args.split_chunks = (args.chunks + plan.split - 1) / plan.split;
  const int block_tiles = (warps >> args.log_warps_k) * warp_tiles;
  const dim3 grid((args.epilogue.tiles + block_tiles - 1) / block_tiles, plan.split, plan.tiles_z);
  kernel<<<grid, warps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace volta
