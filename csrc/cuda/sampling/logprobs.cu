// Log-softmax where it is asked for: at the largest logits, or at given tokens.
#include "../../kernels.h"
#include "row.cuh"

namespace volta {
namespace {

// The largest key below `limit` among the groups first, first + stride, ...
template <typename T>
__device__ uint64_t largest_below(const Row<T>& row, uint64_t limit, int first, int stride) {
  uint64_t best = 0;
  const int groups = row.groups();
  for (int group = first; group < groups; group += stride) {
    float x[Row<T>::kWide];
    row.load(group, x);
#pragma unroll
    for (int j = 0; j < Row<T>::kWide; ++j) {
      const int index = group * Row<T>::kWide + j;
      const uint64_t key = index < row.vocab ? rank_key(x[j], index) : 0;
      if (key < limit && key > best) best = key;
    }
  }
  return best;
}

// Each thread offers the largest of the groups it owns. When one is taken, its warp looks through
// those groups together for the next.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, 1)
    top_logprobs(const T* logits, float* values, int64_t* ids, int vocab, int n) {
  __shared__ uint64_t scratch[32];
  const Row<T> row(logits, vocab);
  const Survey s = survey(row, scratch);
  uint64_t offer = largest_below(row, UINT64_MAX, threadIdx.x, kRowThreads);
  for (int i = 0; i < n; ++i) {
    const uint64_t taken = block_reduce(offer, scratch, Larger());
    const int index = static_cast<int>(key_index(taken));
    if (threadIdx.x == 0) {
      ids[static_cast<size_t>(blockIdx.x) * n + i] = index;
      values[static_cast<size_t>(blockIdx.x) * n + i] = logprob_of(s, key_logit(taken));
    }
    const int owner = index / Row<T>::kWide % kRowThreads, me = threadIdx.x;
    if (owner / 32 != me / 32) continue;
    uint64_t next = largest_below(row, taken, owner + me % 32 * kRowThreads, 32 * kRowThreads);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      next = Larger()(next, __shfl_xor_sync(kAllLanes, next, step));
    if (me == owner) offer = next;
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads, 1)
    token_logprobs(const T* logits, const int64_t* ids, float* values, int vocab, int n) {
  __shared__ uint64_t scratch[32];
  const Row<T> row(logits, vocab);
  const Survey s = survey(row, scratch);
  for (int i = threadIdx.x; i < n; i += kRowThreads) {
    const size_t at = static_cast<size_t>(blockIdx.x) * n + i;
    const int64_t id = ids[at];
    values[at] = id < 0 || id >= vocab ? NAN : logprob_of(s, row.at(static_cast<int>(id)));
  }
}

}  // namespace
}  // namespace volta

int volta_top_logprobs_cuda(const void* logits, int half, float* values, int64_t* ids, int64_t rows,
                            int64_t vocab, int64_t n, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || rows > kMaxSize || vocab < 1 || vocab > kMaxVocab || n < 1 ||
      n > kMaxTopLogprobs || n > vocab)
    return kBadShape;
  return with_logits(logits, half, [&](auto x) {
    top_logprobs<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(
        x, values, ids, static_cast<int>(vocab), static_cast<int>(n));
  });
}

int volta_token_logprobs_cuda(const void* logits, int half, const int64_t* ids, float* values,
                              int64_t rows, int64_t vocab, int64_t n, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || rows > kMaxSize || vocab < 1 || vocab > kMaxVocab || n < 1 || n > kMaxSize)
    return kBadShape;
  return with_logits(logits, half, [&](auto x) {
    token_logprobs<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(
        x, ids, values, static_cast<int>(vocab), static_cast<int>(n));
  });
}
