// Checks sizes, chooses the instruction set and shares the row blocks among threads.
#include <algorithm>

#include "../kernels.h"
#include "range.h"
#include "thread_pool.h"

namespace volta {
namespace {

const CpuKernels* kernels_for(int isa) {
  if (isa < kScalar || isa > volta_cpu_isa()) return nullptr;
#ifdef VOLTA_AVX2
  if (isa == kAvx2) return &kAvx2Kernels;
#endif
  return &kScalarKernels;
}

int64_t blocks_of(int64_t n) { return (n + kRowBlock - 1) / kRowBlock; }

bool fits_matrix(int64_t n, int64_t k) { return n > 0 && k > 0 && k % kGroup == 0; }

// Many rows of x are taken a few at a time: decoding W anew costs less than writing it out in FP32
// for a library's matmul, up to some hundred rows, and needs no memory.
template <typename Kernel, typename Matrix>
void linear(Kernel kernel, const Matrix& w, const float* x, float* y, int64_t m, int threads) {
  parallel_for(blocks_of(w.n), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < m; i += kMaxGemvM)
      kernel(w, x + i * w.k, y + i * w.n, std::min<int64_t>(kMaxGemvM, m - i), begin, end);
  });
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_cpu_isa() {
#ifdef VOLTA_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                           __builtin_cpu_supports("f16c");
  if (avx2) return kAvx2;
#endif
  return kScalar;
}

int volta_nvfp4_linear_cpu(const float* x, const uint8_t* codes, const uint8_t* scales,
                           const float* row_scale, float* y, int64_t m, int64_t n, int64_t k,
                           int threads, int isa) {
  if (m < 1 || !fits_matrix(n, k)) return kBadShape;
  const CpuKernels* kernels = kernels_for(isa);
  if (!kernels) return kBadIsa;
  linear(kernels->nvfp4_gemv, Nvfp4Matrix{codes, scales, row_scale, n, k}, x, y, m, threads);
  return kOk;
}

int volta_half_linear_cpu(const float* x, const uint16_t* w, float* y, int64_t m, int64_t n,
                          int64_t k, int threads, int isa) {
  if (m < 1 || !fits_matrix(n, k)) return kBadShape;
  const CpuKernels* kernels = kernels_for(isa);
  if (!kernels) return kBadIsa;
  linear(kernels->half_gemv, HalfMatrix{w, n, k}, x, y, m, threads);
  return kOk;
}
