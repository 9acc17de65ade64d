// What the two kernels of decode attention share.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../../attention_math.h"

namespace volta {

constexpr int kStepTokens = 8;  // that a warp takes at a time
constexpr float kLog2E = 1.44269504f;
constexpr float kProbabilityBits = 15;  // the largest probability is 2^15

struct DecodeArguments {
  const __half* q;
  const void *k_cache, *v_cache;
  const int32_t *block_table, *lengths;
  const float *sinks, *k_scale, *v_scale;
  __half* out;
  float* partials;  // [sequences][heads][splits][kDim + 4]: the sums, their maximum, their weight
  int sequences, heads, kv_heads, block_size, max_blocks, window;
  float scale, soft_cap;
  int fill, splits;
};

// What a sequence's newest token sees, in steps of 8 tokens, and how many splits share it.
struct Visible {
  int first, length;  // tokens
  int first_step, steps, splits;
};

__device__ __forceinline__ Visible visible_tokens(const DecodeArguments& a, int sequence) {
  Visible v;
  v.length = min(max(a.lengths[sequence], 0), a.max_blocks * a.block_size);
  v.first = static_cast<int>(first_visible(v.length, a.window));
  v.first_step = v.first / kStepTokens;
  v.steps = (v.length + kStepTokens - 1) / kStepTokens - v.first_step;
  constexpr int kMin = kDecodeMinTokens / kStepTokens, kMax = kDecodeMaxTokens / kStepTokens;
  const int filling = min(a.fill, (v.steps + kMin - 1) / kMin);
  v.splits = min(max(filling, (v.steps + kMax - 1) / kMax), a.splits);
  return v;
}

// Sums over some tokens, four dimensions of one query head: out and weight are scaled by 2^-max.
struct PartialSums {
  float4 out = {0, 0, 0, 0};
  float max = -INFINITY, weight = 0;

  __device__ void add(const float4& more, float more_max, float more_weight) {
    const float both = fmaxf(max, more_max);
    if (both == -INFINITY) return;  // no token in either
    const float mine = exp2f(max - both), theirs = exp2f(more_max - both);
    out.x = out.x * mine + more.x * theirs;
    out.y = out.y * mine + more.y * theirs;
    out.z = out.z * mine + more.z * theirs;
    out.w = out.w * mine + more.w * theirs;
    weight = weight * mine + more_weight * theirs;
    max = both;
  }
};

__device__ __forceinline__ uint32_t half2_bits(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace volta
