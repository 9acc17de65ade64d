// W in FP16, row-major, for a matmul of many rows. A block takes a row, a thread 8 columns at a
// time: 4 bytes of codes in, 16 bytes out, both coalesced.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../kernels.h"
#include "../nvfp4.h"

namespace volta {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    nvfp4_dequantize(const uint8_t* __restrict__ codes, const uint8_t* __restrict__ scales,
                     const float* __restrict__ row_scale, __half* __restrict__ w, int k) {
  const size_t row = blockIdx.x;
  const size_t padded_groups = (k + 2 * kGroup - 1) / (2 * kGroup) * 2;
  const uint32_t* row_codes =
      reinterpret_cast<const uint32_t*>(codes + row * padded_groups * (kGroup / 2));
  const uint8_t* row_scales = scales + row * padded_groups;
  const float factor = row_scale[row] * (kE2M1HalfScale * kE4M3HalfScale);

  for (int word = threadIdx.x; word < k / 8; word += kThreads) {
    const uint16_t scale_bits = e4m3_to_half_bits(row_scales[word / 2]);
    const float scale = __half2float(__ushort_as_half(scale_bits)) * factor;
    const uint32_t eight = row_codes[word];
    union {
      __half half[8];
      uint4 all;
    } out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = e2m1_pair_to_half_bits(eight, i);
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&bits));
      out.half[i] = __float2half_rn(pair.x * scale);
      out.half[i + 4] = __float2half_rn(pair.y * scale);
    }
    reinterpret_cast<uint4*>(w + row * k)[word] = out.all;
  }
}

}  // namespace
}  // namespace volta

int volta_nvfp4_dequantize_cuda(const uint8_t* codes, const uint8_t* scales, const float* row_scale,
                                void* w, int64_t n, int64_t k, cudaStream_t stream) {
  using namespace volta;
  if (n < 1 || n > kMaxSize || k < 1 || k > kMaxSize || k % kGroup != 0) return kBadShape;
  nvfp4_dequantize<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(
      codes, scales, row_scale, static_cast<__half*>(w), static_cast<int>(k));
  return cudaGetLastError();
}
