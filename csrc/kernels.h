// The kernels' C interface: pointers, sizes and a stream in, a status out.
//
// No launcher allocates, synchronises or uses the default stream, so every one can be captured in a
// CUDA graph. Callers own all memory and have checked device, type, contiguity and alignment.
#pragma once

#include <cstdint>

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA runtime's own headers

namespace volta {

// Zero is success, a positive status is a cudaError_t.
enum Status : int {
  kOk = 0,
  kBadShape = -1,   // m, n or k outside what the kernel takes
  kBadIsa = -2,     // an instruction set this build or this CPU lacks
  kBadFormat = -3,  // a weight format, or a variant of a kernel, that there is not
};

constexpr int64_t kMaxSize = INT32_MAX;  // of n and k in the CUDA kernels

enum Isa : int { kScalar = 0, kAvx2 = 1 };

}  // namespace volta

extern "C" {

// The best instruction set of this CPU: kAvx2 needs AVX2, FMA and F16C.
int volta_cpu_isa();

// y[m][n] = sum over k of x[m][k] * W[n][k], in FP32; any m and n, k a multiple of 16.
//
// NVFP4 for the CPU alone, in blocks of 8 rows (the last one padded), which AVX2 multiplies 25 to
// 70 times faster than the tiles of packed.h. Codes are [n/8][k/16][64]: byte 32h + 16l + 8u + 2r +
// e of a block and group holds row 4l + r, and in its low and high nibble the columns 8h + 4u + 2e
// and 8h + 4u + 2e + 1. Scales are [n/8][k/16][8].
int volta_nvfp4_linear_cpu(const float* x, const uint8_t* codes, const uint8_t* scales,
                           const float* row_scale, float* y, int64_t m, int64_t n, int64_t k,
                           int threads, int isa);

// y[m][n] = sum over k of x[m][k] * w[n][k]; w is FP16, row-major; k a multiple of 16.
int volta_half_linear_cpu(const float* x, const uint16_t* w, float* y, int64_t m, int64_t n,
                          int64_t k, int threads, int isa);

// What the CUDA kernels were built for: "sm_70 compute_70" is machine code for sm_70, and PTX.
const char* volta_cuda_archs();

// What a positive status means.
const char* volta_cuda_error(int status);

}  // extern "C"

#include "attention.h"
#include "decoder.h"
#include "kv_cache_ops.h"
#include "linear.h"
#include "moe.h"
#include "packed.h"
#include "prefill.h"
#include "sampling.h"
