// What is done to logits before a token is drawn. All of it touches few logits of a row, so these
// kernels are bound by reading which ones: counts and prompt, or the mask.
#include "../../kernels.h"
#include "row.cuh"

namespace volta {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // times four tokens for penalties, tokens for the mask
constexpr int64_t kMaxGridY = 65535;

__device__ __forceinline__ void store(float* at, float x) { *at = x; }
__device__ __forceinline__ void store(__half* at, float x) { *at = __float2half_rn(x); }

unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// kAligned: the vocabulary is a multiple of 4, so that counts load by 16 bytes and prompt by 4.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    apply_penalties(T* logits, const int32_t* __restrict__ counts,
                    const uint8_t* __restrict__ prompt, const int32_t* row_slots,
                    const float* repetition, const float* frequency, const float* presence,
                    int vocab, int64_t slots) {
  const int row = blockIdx.y, slot = row_slots[row];
  const Penalties p{repetition[row], frequency[row], presence[row]};
  if (slot < 0 || slot >= slots || !penalises(p)) return;
  logits += static_cast<size_t>(row) * vocab;
  counts += static_cast<size_t>(slot) * vocab;
  prompt += static_cast<size_t>(slot) * vocab;

  const int begin = (blockIdx.x * kPerThread * kThreads + threadIdx.x) * 4;
  int count[kPerThread][4];
  uint32_t seen[kPerThread];  // a byte per token
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int at = begin + i * kThreads * 4;
    count[i][0] = count[i][1] = count[i][2] = count[i][3] = 0;
    seen[i] = 0;
    if (kAligned) {
      if (at >= vocab) continue;
      const int4 four = __ldg(reinterpret_cast<const int4*>(counts + at));
      count[i][0] = four.x;
      count[i][1] = four.y;
      count[i][2] = four.z;
      count[i][3] = four.w;
      seen[i] = __ldg(reinterpret_cast<const uint32_t*>(prompt + at));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (at + j >= vocab) continue;
        count[i][j] = __ldg(counts + at + j);
        seen[i] |= uint32_t{__ldg(prompt + at + j)} << 8 * j;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (count[i][j] <= 0 && (seen[i] >> 8 * j & 0xffu) == 0) continue;
      T* at = logits + begin + i * kThreads * 4 + j;
      store(at, penalised(to_float(*at), count[i][j], p));
    }
}

__global__ void __launch_bounds__(kThreads)
    count_tokens(int32_t* counts, const int32_t* row_slots, const int64_t* tokens, int64_t rows,
                 int64_t vocab, int64_t slots) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int64_t slot = row_slots[row], token = tokens[row];
  if (slot < 0 || slot >= slots || token < 0 || token >= vocab) return;
  atomicAdd(counts + slot * vocab + token, 1);  // rows may share a slot
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    apply_bias(T* logits, const int32_t* ids, const float* values, int64_t entries, int64_t vocab,
               int64_t n) {
  const int64_t entry = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (entry >= entries) return;
  const int id = ids[entry];
  if (id < 0 || id >= vocab) return;
  T* at = logits + entry / n * vocab + id;
  store(at, to_float(*at) + values[entry]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    apply_mask(T* logits, const int32_t* __restrict__ allowed, int vocab) {
  logits += static_cast<size_t>(blockIdx.y) * vocab;
  allowed += static_cast<size_t>(blockIdx.y) * ((vocab + 31) / 32);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int token = (blockIdx.x * kPerThread + i) * kThreads + threadIdx.x;
    if (token < vocab && !(__ldg(allowed + token / 32) >> token % 32 & 1))
      store(logits + token, -INFINITY);
  }
}

}  // namespace
}  // namespace volta

int volta_apply_penalties_cuda(void* logits, int half, const int32_t* counts, const uint8_t* prompt,
                               const int32_t* row_slots, const float* repetition,
                               const float* frequency, const float* presence, int64_t rows,
                               int64_t vocab, int64_t slots, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || rows > kMaxGridY || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  const dim3 grid(blocks_for(vocab, 4 * kPerThread * kThreads), static_cast<unsigned>(rows));
  return with_logits(logits, half, [&](auto x) {
    using T = std::remove_pointer_t<decltype(x)>;
    const auto kernel = vocab % 4 == 0 ? apply_penalties<T, true> : apply_penalties<T, false>;
    kernel<<<grid, kThreads, 0, stream>>>(x, counts, prompt, row_slots, repetition, frequency,
                                          presence, static_cast<int>(vocab), slots);
  });
}

int volta_count_tokens_cuda(int32_t* counts, const int32_t* row_slots, const int64_t* tokens,
                            int64_t rows, int64_t vocab, int64_t slots, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || rows > kMaxSize || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  count_tokens<<<blocks_for(rows, kThreads), kThreads, 0, stream>>>(counts, row_slots, tokens, rows,
                                                                    vocab, slots);
  return cudaGetLastError();
}

int volta_apply_bias_cuda(void* logits, int half, const int32_t* ids, const float* values,
                          int64_t rows, int64_t vocab, int64_t n, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || rows > kMaxSize || vocab < 1 || vocab > kMaxVocab || n < 1 || n > kMaxVocab)
    return kBadShape;
  return with_logits(logits, half, [&](auto x) {
    apply_bias<<<blocks_for(rows * n, kThreads), kThreads, 0, stream>>>(x, ids, values, rows * n,
                                                                        vocab, n);
  });
}

int volta_apply_mask_cuda(void* logits, int half, const int32_t* allowed, int64_t rows,
                          int64_t vocab, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || rows > kMaxGridY || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  const dim3 grid(blocks_for(vocab, kPerThread * kThreads), static_cast<unsigned>(rows));
  return with_logits(logits, half, [&](auto x) {
    apply_mask<<<grid, kThreads, 0, stream>>>(x, allowed, static_cast<int>(vocab));
  });
}
