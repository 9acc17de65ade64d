// A warp's lanes together: every lane gets the result, in a fixed order of summation.
#pragma once

#include <cuda_runtime.h>

#include "../decoder/vector.cuh"

namespace volta {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

__device__ __forceinline__ int warp_max(int value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = max(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

}  // namespace volta
