// What each instruction set implements: a kernel over a range of row blocks, run by one thread.
#pragma once

#include <cstdint>

namespace volta {

constexpr int kGroup = 16;    // columns that share a scale, of which k is a multiple
constexpr int kRowBlock = 8;  // rows per block of the packed layout, one per AVX2 lane
constexpr int kMaxGemvM = 8;  // rows of x taken at a time

struct Nvfp4Matrix {
  const uint8_t* codes;
  const uint8_t* scales;
  const float* row_scale;
  int64_t n, k;
};

struct HalfMatrix {
  const uint16_t* w;
  int64_t n, k;
};

// y[m][n] for the row blocks [begin, end); 1 <= m <= kMaxGemvM.
struct CpuKernels {
  void (*nvfp4_gemv)(const Nvfp4Matrix& w, const float* x, float* y, int64_t m, int64_t begin,
                     int64_t end);
  void (*half_gemv)(const HalfMatrix& w, const float* x, float* y, int64_t m, int64_t begin,
                    int64_t end);
};

extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;

}  // namespace volta
