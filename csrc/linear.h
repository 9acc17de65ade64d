// The C interface of products with packed matrices on CUDA; packed.h has the CPU's.
#pragma once

#include <cstdint>

extern "C" {

// y = x W^T, with W [n][k] packed in `tiles` tiles of 32 rows. For each row of W row_scale and
// half_factor (packed.h).
//
// epilogue: + bias [n]; gated, silu of gate times up, for which tiles of gate and up alternate and
// y has n / 2 columns; + residual, as y. bias and residual may be null.
//
// Dense, tile_expert is null and x is [m][k], m up to 32. Routed, W, row_scale, half_factor and
// bias are those of all experts, one after the other; the arrays are moe_permute's with tiles of m
// rows; y has a row for each assignment, x one for each, or for each token where top_k is not 0.
//
// plan: a warp takes warp_tiles tiles of W, 1 or 2, where m is 1 or 2, else one. A block has
// `warps` warps, of which warps_k split K; `split` blocks split K further. They meet in workspace,
// of blocks' rows * split * m (1, 2, 8, 16 or 32) * tiles_z floats, and in counters, one for each
// block's rows and tile of x, which are zero before and after.
int volta_packed_linear_cuda(int format, const void* x, const uint8_t* data, const float* row_scale,
                             const float* half_factor, const void* bias, const void* residual,
                             void* y, float* workspace, int* counters, const int* tile_expert,
                             const int* tile_row, const int* expert_offsets, const int* sorted,
                             int64_t m, int64_t n, int64_t k, int64_t tiles, int64_t tiles_z,
                             int top_k, int gated, int warp_tiles, int warps, int warps_k,
                             int split, cudaStream_t stream);

}  // extern "C"
