// What is done to logits before a token is drawn, row by row.
#include <cmath>
#include <cstdint>

#include "../kernels.h"
#include "../sampling_math.h"
#include "thread_pool.h"

int volta_apply_penalties_cpu(void* logits, int half, const int32_t* counts, const uint8_t* prompt,
                              const int32_t* row_slots, const float* repetition,
                              const float* frequency, const float* presence, int64_t rows,
                              int64_t vocab, int64_t slots, int threads) {
  using namespace volta;
  if (half) return kBadFormat;
  if (rows < 1 || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t slot = row_slots[row];
      const Penalties p{repetition[row], frequency[row], presence[row]};
      if (slot < 0 || slot >= slots || !penalises(p)) continue;
      float* x = static_cast<float*>(logits) + row * vocab;
      for (int64_t i = 0; i < vocab; ++i) {
        const int32_t count = counts[slot * vocab + i];
        if (count > 0 || prompt[slot * vocab + i]) x[i] = penalised(x[i], count, p);
      }
    }
  });
  return kOk;
}

int volta_count_tokens_cpu(int32_t* counts, const int32_t* row_slots, const int64_t* tokens,
                           int64_t rows, int64_t vocab, int64_t slots, int /*threads*/) {
  using namespace volta;
  if (rows < 1 || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t slot = row_slots[row], token = tokens[row];
    if (slot >= 0 && slot < slots && token >= 0 && token < vocab) ++counts[slot * vocab + token];
  }
  return kOk;
}

int volta_apply_bias_cpu(void* logits, int half, const int32_t* ids, const float* values,
                         int64_t rows, int64_t vocab, int64_t n, int /*threads*/) {
  using namespace volta;
  if (half) return kBadFormat;
  if (rows < 1 || vocab < 1 || vocab > kMaxVocab || n < 1) return kBadShape;
  for (int64_t i = 0; i < rows * n; ++i)
    if (ids[i] >= 0 && ids[i] < vocab)
      static_cast<float*>(logits)[i / n * vocab + ids[i]] += values[i];
  return kOk;
}

int volta_apply_mask_cpu(void* logits, int half, const int32_t* allowed, int64_t rows,
                         int64_t vocab, int threads) {
  using namespace volta;
  if (half) return kBadFormat;
  if (rows < 1 || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  const int64_t words = (vocab + 31) / 32;
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* x = static_cast<float*>(logits) + row * vocab;
      for (int64_t i = 0; i < vocab; ++i)
        if (!(allowed[row * words + i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
    }
  });
  return kOk;
}
