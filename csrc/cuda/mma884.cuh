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

#include <cuda_fp16.h>
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
__device__ __forceinline__ int mma_b_column(int lane) {  // of B by columns
  return (lane & 3) | (lane & 8) >> 1 | (lane & 16) >> 1;
}
__device__ __forceinline__ int mma_b_row(int lane) { return lane & 3; }  // of B by rows
__device__ __forceinline__ int mma_b_first_column(int lane) {            // of B by rows
  return (lane & 8) >> 1 | (lane & 16) >> 1;
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

#define VOLTA_MMA884(layout, sum, a, b)                                                    \
  asm volatile("mma.sync.aligned.m8n8k4.row." layout                                       \
               ".f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, " \
               "{%0, %1, %2, %3, %4, %5, %6, %7};"                                         \
               : "+f"(sum.at[0]), "+f"(sum.at[1]), "+f"(sum.at[2]), "+f"(sum.at[3]),       \
                 "+f"(sum.at[4]), "+f"(sum.at[5]), "+f"(sum.at[6]), "+f"(sum.at[7])        \
               : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high))

// sum += A B, B held by columns (as a weight [n][k] is) or by rows. All lanes of a warp take part.
__device__ __forceinline__ void mma_by_columns(MmaSum& sum, MmaFactor a, MmaFactor b) {
  VOLTA_MMA884("col", sum, a, b);
}
__device__ __forceinline__ void mma_by_rows(MmaSum& sum, MmaFactor a, MmaFactor b) {
  VOLTA_MMA884("row", sum, a, b);
}

#undef VOLTA_MMA884

// Columns 8 half .. 8 half + 7 of a D, rounded to FP16, as two steps of A: for a next product whose
// K are D's columns. A lane's row of A is one of the two that it has of D; the other half of this
// row is in the lane 2 away, and each step in the lanes with one value of b3.
__device__ __forceinline__ void mma_d_to_a(const MmaSum& d, int half, int lane, MmaFactor a[2]) {
  constexpr uint32_t kAll = 0xffffffffu;
  const bool second = lane & 2;
  uint32_t pair[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const __half2 rounded =
        __floats2half2_rn(d.at[4 * half + 2 * row], d.at[4 * half + 2 * row + 1]);
    pair[row] = *reinterpret_cast<const uint32_t*>(&rounded);
  }
  const uint32_t mine = second ? pair[1] : pair[0];
  const uint32_t other = __shfl_xor_sync(kAll, second ? pair[0] : pair[1], 2);
  const uint32_t low = second ? other : mine, high = second ? mine : other;
#pragma unroll
  for (int b3 = 0; b3 < 2; ++b3) {
    const int from = (lane & ~8) | b3 << 3;
    a[b3] = {__shfl_sync(kAll, low, from), __shfl_sync(kAll, high, from)};
  }
}

}  // namespace volta
