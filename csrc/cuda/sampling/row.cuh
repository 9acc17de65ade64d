// A row of logits before a block of 1024 threads: wide loads, reductions, and a first look at it.
//
// A block to a row: 152k FP32 logits are 608 KB, which stay in L2 for the passes after the first,
// and no sum depends on the size of the batch.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../../sampling_math.h"

namespace volta {

constexpr int kRowThreads = 1024;
constexpr unsigned kAllLanes = 0xffffffffu;

// Logits of type T in 16 bytes.
template <typename T>
struct Wide {
  static constexpr int kCount = 16 / sizeof(T);
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <typename T>
struct Row {
  static constexpr int kWide = Wide<T>::kCount;

  const T* logits;
  int vocab;

  __device__ Row(const T* all, int vocab)
      : logits(all + static_cast<size_t>(blockIdx.x) * vocab), vocab(vocab) {}

  __device__ int groups() const { return (vocab + kWide - 1) / kWide; }
  __device__ float at(int index) const { return clean_logit(to_float(__ldg(logits + index))); }

  // Clean logits group * kWide and following, -inf beyond the end. Rows of an odd vocabulary are
  // not aligned: they go one by one.
  __device__ __forceinline__ void load(int group, float (&x)[kWide]) const {
    const int first = group * kWide;
    union {
      uint4 all;
      T each[kWide];
    } raw;
    if (reinterpret_cast<uintptr_t>(logits) % 16 == 0 && first + kWide <= vocab) {
      raw.all = __ldg(reinterpret_cast<const uint4*>(logits) + group);
#pragma unroll
      for (int j = 0; j < kWide; ++j) x[j] = clean_logit(to_float(raw.each[j]));
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) x[j] = first + j < vocab ? at(first + j) : -INFINITY;
    }
  }
};

// combine(a, b) over the block, in the same order every time; all threads get it. scratch: 32.
template <typename V, typename Combine>
__device__ __forceinline__ V block_reduce(V value, V* scratch, const Combine& combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  __syncthreads();  // scratch is free again
  return value;
}

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

struct Sum {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};

struct Survey {
  float max;
  int index;      // -1: no logit is above -inf
  float log_sum;  // of e^(logit - max)
};

template <typename T>
__device__ __forceinline__ Survey survey(const Row<T>& row, uint64_t* scratch) {
  float max = -INFINITY, sum = 0.0f;  // sum of e^(logit - max)
  int index = 0;
  const int groups = row.groups();
#pragma unroll 2
  for (int group = threadIdx.x; group < groups; group += kRowThreads) {
    float x[Row<T>::kWide];
    row.load(group, x);
    const float before = max;
#pragma unroll
    for (int j = 0; j < Row<T>::kWide; ++j) {
      if (x[j] > max) {
        max = x[j];
        index = group * Row<T>::kWide + j;
      }
    }
    if (max == -INFINITY) continue;
    if (max > before) sum *= __expf(before - max);
#pragma unroll
    for (int j = 0; j < Row<T>::kWide; ++j) sum += __expf(x[j] - max);
  }
  const uint64_t key =
      block_reduce(max == -INFINITY ? uint64_t{0} : rank_key(max, index), scratch, Larger());
  if (key == 0) return {-INFINITY, -1, 0.0f};
  const float top = key_logit(key);
  sum = block_reduce(sum * __expf(max - top), reinterpret_cast<float*>(scratch), Sum());
  return {top, static_cast<int>(key_index(key)), logf(sum)};
}

__device__ __forceinline__ float logprob_of(const Survey& s, float logit) {
  return s.index < 0 ? NAN : (logit - s.max) - s.log_sum;
}

// Calls launch(logits) with their type.
template <typename Launch>
int with_logits(void* logits, int half, const Launch& launch) {
  if (half)
    launch(static_cast<__half*>(logits));
  else
    launch(static_cast<float*>(logits));
  return cudaGetLastError();
}

template <typename Launch>
int with_logits(const void* logits, int half, const Launch& launch) {
  return with_logits(const_cast<void*>(logits), half, launch);
}

}  // namespace volta
