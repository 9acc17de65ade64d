// Checks sizes, chooses the instruction set and shares the row blocks among threads.
#include "../kernels.h"
#include "../nvfp4.h"
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
bool fits_gemv(int64_t m, int64_t n, int64_t k) {
  return m > 0 && m <= kMaxGemvM && fits_matrix(n, k);
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

int volta_nvfp4_gemv_cpu(const float* x, const uint8_t* codes, const uint8_t* scales,
                         const float* row_scale, float* y, int64_t m, int64_t n, int64_t k,
                         int threads, int isa) {
  if (!fits_gemv(m, n, k)) return kBadShape;
  const CpuKernels* kernels = kernels_for(isa);
  if (!kernels) return kBadIsa;
  const Nvfp4Matrix w{codes, scales, row_scale, n, k};
  parallel_for(blocks_of(n), threads,
               [&](int64_t begin, int64_t end) { kernels->nvfp4_gemv(w, x, y, m, begin, end); });
  return kOk;
}

int volta_nvfp4_dequantize_cpu(const uint8_t* codes, const uint8_t* scales, const float* row_scale,
                               float* w, int64_t n, int64_t k, int threads, int isa) {
  if (!fits_matrix(n, k)) return kBadShape;
  const CpuKernels* kernels = kernels_for(isa);
  if (!kernels) return kBadIsa;
  const Nvfp4Matrix packed{codes, scales, row_scale, n, k};
  parallel_for(blocks_of(n), threads, [&](int64_t begin, int64_t end) {
    kernels->nvfp4_dequantize(packed, w, begin, end);
  });
  return kOk;
}

int volta_half_gemv_cpu(const float* x, const uint16_t* w, float* y, int64_t m, int64_t n,
                        int64_t k, int threads, int isa) {
  if (!fits_gemv(m, n, k)) return kBadShape;
  const CpuKernels* kernels = kernels_for(isa);
  if (!kernels) return kBadIsa;
  const HalfMatrix matrix{w, n, k};
  parallel_for(blocks_of(n), threads, [&](int64_t begin, int64_t end) {
    kernels->half_gemv(matrix, x, y, m, begin, end);
  });
  return kOk;
}
