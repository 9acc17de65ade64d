// Volta's tensor cores: mma.m8n8k4 with FP16 factors and FP32 sums, in SASS four HMMA.884.
//
// The instruction gives each quad pair of a warp (lanes 4q .. 4q+3 and 4q+16 .. 4q+19) a product
// 8x8x4 of its own. Here the four quad pairs make one product D[16][16] = A[16][4] B[4][16] + C:
// those that differ in lane bit 2 take other rows of A, those that differ in bit 3 other columns
// of B, and each half of A and B is loaded by two of them. With b2, b3, b4 the bits of the lane:
//
//   A                 row    (lane & 3) + 4 b2 + 8 b4, its columns 0 .. 3
//   B by columns      column (lane & 3) + 4 b3 + 8 b4, its rows 0 .. 3
//   B by rows         row     lane & 3, columns 4 b3 + 8 b4 + 0 .. 3
//   C, D, element i   row    (lane & 1) + (i & 2) + 4 b2 + 8 b4
//                     column (i & 1) + (lane & 2) + 4 b3 + 2 (i & 4)
//
// (b4 is worth 8 and not 4, as in the instruction's own tile, so that the eight lanes that a shared
// load of 16 bytes serves at a time read eight rows of A in sequence.)
//
// In shared memory a matrix of factors is kept as chunks of 8 numbers, 16 bytes, along K: chunk c
// of row r at [c][r]. Loads and stores of one chunk of 8 rows in sequence meet no bank conflict,
// and all addresses of a loop over chunks differ by constants. A lane's chunk is two steps of K.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace volta {

constexpr int kMmaTile = 16;  // rows and columns of a warp's product
constexpr int kMmaStep = 4;   // of K
constexpr int kMmaChunk = 8;  // numbers of 16 bytes

struct MmaFactor {  // four FP16 of A or B, in the order of K (B by rows: of columns)
  uint32_t low, high;
};

struct MmaSum {  // a lane's eight elements of C or D
  float at[8];
};

__device__ __forceinline__ int mma_a_row(int lane) {
  return (lane & 3) | (lane & 4) | (lane & 16) >> 1;
}
// Of B by columns; also a quarter of it: which four columns of B by rows.
__device__ __forceinline__ int mma_b_column(int lane) {
  return (lane & 3) | (lane & 8) >> 1 | (lane & 16) >> 1;
}
__device__ __forceinline__ int mma_d_row(int lane, int i) {
  return (lane & 1) | (i & 2) | (lane & 4) | (lane & 16) >> 1;
}
__device__ __forceinline__ int mma_d_column(int lane, int i) {
  return (i & 1) | (lane & 2) | (lane & 8) >> 1 | (i & 4) << 1;
}

// The two steps of K in a chunk.
__device__ __forceinline__ MmaFactor mma_factor(const uint4& chunk, int step) {
  return step == 0 ? MmaFactor{chunk.x, chunk.y} : MmaFactor{chunk.z, chunk.w};
}

#define VOLTA_MMA884(layout, sum, a, b)                                                      \
  asm("mma.sync.aligned.m8n8k4.row." layout                                                  \
      ".f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "            \
      "{%0, %1, %2, %3, %4, %5, %6, %7};"                                                    \
      : "+f"(sum.at[0]), "+f"(sum.at[1]), "+f"(sum.at[2]), "+f"(sum.at[3]), "+f"(sum.at[4]), \
        "+f"(sum.at[5]), "+f"(sum.at[6]), "+f"(sum.at[7])                                    \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high))

// sum += A B, with B held by columns (as K^T or a weight [n][k] is) or by rows. All lanes take
// part.
__device__ __forceinline__ void mma_by_columns(MmaSum& sum, MmaFactor a, MmaFactor b) {
  VOLTA_MMA884("col", sum, a, b);
}
__device__ __forceinline__ void mma_by_rows(MmaSum& sum, MmaFactor a, MmaFactor b) {
  VOLTA_MMA884("row", sum, a, b);
}

#undef VOLTA_MMA884

}  // namespace volta
