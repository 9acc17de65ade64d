// y = x W^T for up to 8 rows of x, with W kept as NVFP4: bound by reading W's 4.5 bits a weight.
//
// A warp takes a few rows of W. Its lanes stride over K in chunks of 32 columns, one 16-byte load
// of codes and two scales each. Where N is too small to fill the GPU, the warps of a block split K
// and join their sums in shared memory. Products and sums are FP32: FP16 sums of 16 products would
// overflow from activations of about 700 on, which real models reach.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../kernels.h"
#include "../nvfp4.h"

namespace volta {
namespace {

constexpr int kWarp = 32;
constexpr int kWarpsPerBlock = 4;
constexpr int kBlocksPerSm = 4;         // at most 128 registers a thread
constexpr int kChunk = 32;              // columns per 16-byte load of codes
constexpr int kFillingWarps = 80 * 16;  // a V100's 80 SMs with 16 warps each hide memory latency

__device__ __forceinline__ void unpack_half2(uint32_t bits, float& low, float& high) {
  const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&bits));
  low = pair.x;
  high = pair.y;
}

// kM: rows of x.  kRows: rows of W per warp.  split: warps that share rows of W, 1, 2 or 4.
template <int kM, int kRows>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock, kBlocksPerSm)
    nvfp4_gemv(const __half* __restrict__ x, const uint4* __restrict__ codes,
               const uint16_t* __restrict__ scales, const float* __restrict__ row_scale,
               __half* __restrict__ y, int n, int k, int split) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int part = warp % split;
  const int first_row = (blockIdx.x * (kWarpsPerBlock / split) + warp / split) * kRows;
  const int chunks = (k + kChunk - 1) / kChunk;

  float sum[kRows][kM] = {};
  for (int chunk = part * kWarp + lane; chunk < chunks; chunk += split * kWarp) {
    uint4 code[kRows];
    uint32_t scale_pair[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Rows beyond N repeat the last one; their sums are not written.
      const size_t at = static_cast<size_t>(min(first_row + r, n - 1)) * chunks + chunk;
      code[r] = __ldg(codes + at);
      scale_pair[r] = __ldg(scales + at);
    }
#pragma unroll
    for (int group = 0; group < kChunk / kGroup; ++group) {
      const int column = chunk * kChunk + group * kGroup;
      if (column >= k) break;  // the padding of an odd number of groups
      float partial[kRows][kM] = {};
#pragma unroll
      for (int word = 0; word < kGroup / 8; ++word) {
        float weight[kRows][8];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const uint32_t words[4] = {code[r].x, code[r].y, code[r].z, code[r].w};
#pragma unroll
          for (int i = 0; i < 4; ++i)
            unpack_half2(e2m1_pair_to_half_bits(words[group * 2 + word], i), weight[r][i],
                         weight[r][i + 4]);
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const size_t at = static_cast<size_t>(m) * k + column + word * 8;
          const uint4 eight = __ldg(reinterpret_cast<const uint4*>(x + at));
          float xs[8];
          unpack_half2(eight.x, xs[0], xs[1]);
          unpack_half2(eight.y, xs[2], xs[3]);
          unpack_half2(eight.z, xs[4], xs[5]);
          unpack_half2(eight.w, xs[6], xs[7]);
#pragma unroll
          for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int i = 0; i < 8; ++i) partial[r][m] = fmaf(weight[r][i], xs[i], partial[r][m]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint8_t byte = static_cast<uint8_t>(scale_pair[r] >> (8 * group));
        const float scale = __half2float(__ushort_as_half(e4m3_to_half_bits(byte)));
#pragma unroll
        for (int m = 0; m < kM; ++m) sum[r][m] = fmaf(partial[r][m], scale, sum[r][m]);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int step = kWarp / 2; step > 0; step /= 2)
        sum[r][m] += __shfl_xor_sync(0xffffffffu, sum[r][m], step);

  if (split > 1) {
    __shared__ float parts[kWarpsPerBlock][kRows * kM];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int m = 0; m < kM; ++m)
        if (lane == r * kM + m) parts[warp][lane] = sum[r][m];
    __syncthreads();
    if (part != 0) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int m = 0; m < kM; ++m)
        for (int p = 1; p < split; ++p) sum[r][m] += parts[warp + p][r * kM + m];
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int row = first_row + r;
      if (lane != r * kM + m || row >= n) continue;
      const float scale = row_scale[row] * (kE2M1HalfScale * kE4M3HalfScale);
      y[static_cast<size_t>(m) * n + row] = __float2half_rn(sum[r][m] * scale);
    }
}

using Kernel = void (*)(const __half*, const uint4*, const uint16_t*, const float*, __half*, int,
                        int, int);

// For each M the kernel for large N, and the one for N so small that rows must not share a warp.
struct Choice {
  int rows;
  Kernel large, small;
};

constexpr Choice kByM[kMaxGemvM] = {
    {4, nvfp4_gemv<1, 4>, nvfp4_gemv<1, 1>}, {4, nvfp4_gemv<2, 4>, nvfp4_gemv<2, 1>},
    {2, nvfp4_gemv<3, 2>, nvfp4_gemv<3, 1>}, {2, nvfp4_gemv<4, 2>, nvfp4_gemv<4, 1>},
    {2, nvfp4_gemv<5, 2>, nvfp4_gemv<5, 1>}, {2, nvfp4_gemv<6, 2>, nvfp4_gemv<6, 1>},
    {2, nvfp4_gemv<7, 2>, nvfp4_gemv<7, 1>}, {2, nvfp4_gemv<8, 2>, nvfp4_gemv<8, 1>},
};

}  // namespace
}  // namespace volta

int volta_nvfp4_gemv_cuda(const void* x, const uint8_t* codes, const uint8_t* scales,
                          const float* row_scale, void* y, int64_t m, int64_t n, int64_t k,
                          cudaStream_t stream) {
  using namespace volta;
  if (m < 1 || m > kMaxGemvM || n < 1 || n > kMaxSize || k < 1 || k > kMaxSize || k % kGroup != 0)
    return kBadShape;

  // Split K, as far as each lane keeps a chunk, until there are warps enough; then unshare rows.
  const Choice& choice = kByM[m - 1];
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  int64_t warps = (n + choice.rows - 1) / choice.rows;
  int split = 1;
  while (split < kWarpsPerBlock && warps * split < kFillingWarps && chunks > kWarp * split)
    split *= 2;
  Kernel kernel = choice.large;
  if (warps * split < kFillingWarps) {
    kernel = choice.small;
    warps = n;
  }
  const int64_t per_block = kWarpsPerBlock / split;
  const unsigned blocks = static_cast<unsigned>((warps + per_block - 1) / per_block);
  kernel<<<blocks, kWarp * kWarpsPerBlock, 0, stream>>>(
      static_cast<const __half*>(x), reinterpret_cast<const uint4*>(codes),
      reinterpret_cast<const uint16_t*>(scales), row_scale, static_cast<__half*>(y),
      static_cast<int>(n), static_cast<int>(k), split);
  return cudaGetLastError();
}
