// kVec numbers that a thread loads and stores at once: 8, or 1 for sizes that are not a multiple of
// 8. And the grid for one vector of a row a thread.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace volta {

constexpr int kWarp = 32;

// As stored. FP16 comes in words of two: 16-bit registers cost a permutation for each number.
template <typename T, int kVec>
struct Vector;

template <>
struct alignas(16) Vector<__half, 8> {
  uint32_t word[4];
};
template <>
struct Vector<__half, 1> {
  uint16_t bits;
};
template <int kVec>
struct alignas(kVec < 4 ? 4 : 16) Vector<float, kVec> {
  float value[kVec];
};

template <typename T, int kVec>
__device__ __forceinline__ void load(const T* from, Vector<T, kVec>& to) {
  to = *reinterpret_cast<const Vector<T, kVec>*>(from);
}

template <typename T, int kVec>
__device__ __forceinline__ void store(T* to, const Vector<T, kVec>& from) {
  *reinterpret_cast<Vector<T, kVec>*>(to) = from;
}

__device__ __forceinline__ void unpack(const Vector<__half, 8>& from, float* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(from.word[i]));
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ void unpack(const Vector<__half, 1>& from, float* to) {
  *to = __half2float(__ushort_as_half(from.bits));
}
template <int kVec>
__device__ __forceinline__ void unpack(const Vector<float, kVec>& from, float* to) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) to[i] = from.value[i];
}

// What is finite stays finite: beyond FP16's largest number it is that one.
__device__ __forceinline__ float saturated(float value) {
  constexpr float kLargest = 65504.0f;
  const float size = fabsf(value);
  return size > kLargest && size < INFINITY ? copysignf(kLargest, value) : value;
}

__device__ __forceinline__ void pack(const float* from, Vector<__half, 8>& to) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    reinterpret_cast<__half2&>(to.word[i]) =
        __floats2half2_rn(saturated(from[2 * i]), saturated(from[2 * i + 1]));
}
__device__ __forceinline__ void pack(const float* from, Vector<__half, 1>& to) {
  to.bits = __half_as_ushort(__float2half_rn(saturated(*from)));
}
template <int kVec>
__device__ __forceinline__ void pack(const float* from, Vector<float, kVec>& to) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) to.value[i] = from[i];
}

// A row is shared by `parts` blocks, whose numbers are row * parts + part.
struct RowGrid {
  int64_t blocks;
  unsigned parts, threads;

  RowGrid(int64_t rows, int64_t vectors) {
    constexpr int64_t kThreads = 256;
    const int64_t in_row = (vectors + kThreads - 1) / kThreads;
    blocks = rows * in_row;
    parts = static_cast<unsigned>(in_row);
    threads = static_cast<unsigned>(((vectors + in_row - 1) / in_row + kWarp - 1) / kWarp * kWarp);
  }
};

struct RowPlace {
  int64_t row, vector;
};

__device__ __forceinline__ RowPlace row_place(unsigned parts) {
  return {blockIdx.x / parts, blockIdx.x % parts * blockDim.x + threadIdx.x};
}

}  // namespace volta
