// The paged KV cache in GPU memory. All bound by memory: 16 bytes at a time.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../../kernels.h"
#include "../../kv_cache.h"

namespace volta {
namespace {

constexpr int kThreads = 128;
constexpr int kEight = 8;     // numbers a thread encodes at a time, 16 bytes of FP16
constexpr int kInFlight = 4;  // loads of a copying thread

__device__ __forceinline__ void store(void* to, const uint32_t (&words)[4]) {
  *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ __forceinline__ void store(void* to, const uint32_t (&words)[2]) {
  *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
}

// blockIdx.x is the token, blockIdx.y chooses between k and v.
template <typename Code>
__global__ void __launch_bounds__(kThreads)
    write_token(const uint4* k, const uint4* v, Code* k_cache, Code* v_cache, const int64_t* slots,
                const float* k_scale, const float* v_scale, int kv_heads, int head_dim,
                int block_size) {
  const int64_t slot = slots[blockIdx.x];
  if (slot < 0) return;
  const bool is_v = blockIdx.y != 0;
  const int per_head = head_dim / kEight;
  const uint4* const from = (is_v ? v : k) + static_cast<size_t>(blockIdx.x) * kv_heads * per_head;
  const float* const scales = is_v ? v_scale : k_scale;
  Code* const to = (is_v ? v_cache : k_cache) +
                   (slot / block_size * kv_heads * block_size + slot % block_size) * head_dim;
  for (int i = threadIdx.x; i < kv_heads * per_head; i += kThreads) {
    const int head = i / per_head;
    const uint4 loaded = __ldg(from + i);
    const uint32_t pairs[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    const float scale = scales ? scales[head] : 1.0f;
    Code codes[kEight];
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      const uint32_t bits = pairs[e / 2] >> 16 * (e % 2) & 0xffffu;
      kv_encode(__half2float(__ushort_as_half(static_cast<unsigned short>(bits))), scale, codes[e]);
    }
    uint32_t words[sizeof codes / sizeof(uint32_t)];
    memcpy(words, codes, sizeof codes);
    store(to + static_cast<int64_t>(head) * block_size * head_dim + i % per_head * kEight, words);
  }
}

// blockIdx.x is the pair, blockIdx.y a part of the block, blockIdx.z chooses between k and v.
__global__ void __launch_bounds__(kThreads)
    copy_block(uint4* k_cache, uint4* v_cache, const int64_t* pairs, int64_t words) {
  const int64_t source = pairs[2 * static_cast<int64_t>(blockIdx.x)];
  const int64_t destination = pairs[2 * static_cast<int64_t>(blockIdx.x) + 1];
  if (source < 0 || destination < 0) return;
  uint4* const cache = blockIdx.z != 0 ? v_cache : k_cache;
  const uint4* const from = cache + source * words;
  uint4* const to = cache + destination * words;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kThreads * kInFlight + threadIdx.x;
  uint4 held[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i)
    if (first + i * kThreads < words) held[i] = from[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i)
    if (first + i * kThreads < words) to[first + i * kThreads] = held[i];
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_kv_cache_write_cuda(const void* k, const void* v, void* k_cache, void* v_cache,
                              const int64_t* slots, const float* k_scale, const float* v_scale,
                              int64_t tokens, int64_t kv_heads, int64_t head_dim,
                              int64_t block_size, int kv_type, cudaStream_t stream) {
  if (tokens < 0 || tokens > kMaxSize || kv_heads < 1 || head_dim < 1 || head_dim % 16 != 0 ||
      block_size < 1 || kv_heads > kMaxSize / head_dim || block_size > kMaxSize)
    return kBadShape;
  if (tokens == 0) return kOk;
  return with_kv_type(kv_type, kBadFormat, [&](auto code) -> int {
    using Code = decltype(code);
    write_token<<<dim3(static_cast<unsigned>(tokens), 2), kThreads, 0, stream>>>(
        static_cast<const uint4*>(k), static_cast<const uint4*>(v), static_cast<Code*>(k_cache),
        static_cast<Code*>(v_cache), slots, k_scale, v_scale, static_cast<int>(kv_heads),
        static_cast<int>(head_dim), static_cast<int>(block_size));
    return cudaGetLastError();
  });
}

int volta_kv_cache_copy_cuda(void* k_cache, void* v_cache, const int64_t* pairs, int64_t count,
                             int64_t block_bytes, cudaStream_t stream) {
  constexpr int64_t kPart = static_cast<int64_t>(sizeof(uint4)) * kThreads * kInFlight;
  const int64_t parts = (block_bytes + kPart - 1) / kPart;
  if (count < 0 || count > kMaxSize || block_bytes < 1 || block_bytes % sizeof(uint4) != 0 ||
      parts > 65535)
    return kBadShape;
  if (count == 0) return kOk;
  copy_block<<<dim3(static_cast<unsigned>(count), static_cast<unsigned>(parts), 2), kThreads, 0,
               stream>>>(static_cast<uint4*>(k_cache), static_cast<uint4*>(v_cache), pairs,
                         block_bytes / static_cast<int64_t>(sizeof(uint4)));
  return cudaGetLastError();
}

int volta_kv_cache_swap_cuda(const void* source, void* destination, const int64_t* pairs,
                             int64_t count, int64_t block_bytes, cudaStream_t stream) {
  if (count < 0 || block_bytes < 1) return kBadShape;
  for (int64_t i = 0; i < count;) {
    const int64_t from = pairs[2 * i], to = pairs[2 * i + 1];
    int64_t run = 1;
    while (i + run < count && pairs[2 * (i + run)] == from + run &&
           pairs[2 * (i + run) + 1] == to + run)
      ++run;
    i += run;
    const cudaError_t error =
        cudaMemcpyAsync(static_cast<char*>(destination) + to * block_bytes,
                        static_cast<const char*>(source) + from * block_bytes,
                        static_cast<size_t>(run * block_bytes), cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return error;
  }
  return kOk;
}
