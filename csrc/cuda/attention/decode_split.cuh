// One split of decode attention: a block reads a share of one sequence's K and V of one KV head,
// once for all query heads of its group, and leaves unnormalised sums to the joining kernel.
//
// A warp takes 8 tokens at a time on tensor cores (mma.m8n8k4: four products 8x8x4, one for each
// quad pair of lanes), straight from global memory: with the query heads as the 8 rows, which
// dimensions and tokens a product covers is ours to choose, so each lane loads up to 16 bytes of
// one row and neighbouring quad pairs load neighbouring bytes.
//
//   logits  rows: query heads, columns: 8 tokens. Each quad pair sums over dimensions of its own;
//           shuffles add the four.
//   values  rows: query heads, columns: dimensions of the quad pair's own, over 4 tokens twice.
//
// Probabilities are FP16, as powers of two below 2^15 so that those 2^-39 of the largest still
// count; sums are FP32. Arithmetic stays far below what memory allows, for any group size.
#pragma once

#include "../../kv_cache.h"
#include "../mma884.cuh"
#include "decode.cuh"

namespace volta {

constexpr int kDecodeWarps = 4;
constexpr int kTileRows = 8;  // query heads of one product
constexpr unsigned kAllLanes = 0xffffffffu;

// A lane's numbers of one row at a time: the most that 16 bytes hold and the row's length allows
// for `lanes` lanes.
template <typename Code>
__host__ __device__ constexpr int lane_numbers(int dim, int lanes) {
  int numbers = 16 / static_cast<int>(sizeof(Code));
  while (dim % (numbers * lanes) != 0) numbers /= 2;
  return numbers;
}

__device__ __forceinline__ void load_words(const void* from, uint32_t (&words)[4]) {
  const uint4 loaded = __ldg(static_cast<const uint4*>(from));
  words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
}
__device__ __forceinline__ void load_words(const void* from, uint32_t (&words)[2]) {
  const uint2 loaded = __ldg(static_cast<const uint2*>(from));
  words[0] = loaded.x, words[1] = loaded.y;
}
__device__ __forceinline__ void load_words(const void* from, uint32_t (&words)[1]) {
  words[0] = __ldg(static_cast<const uint32_t*>(from));
}

template <typename Code>
__device__ __forceinline__ uint32_t unbiased(Code, uint32_t pair) {
  return pair;
}
__device__ __forceinline__ uint32_t unbiased(KvInt8, uint32_t pair) {
  const __half2 value =
      __hsub2(*reinterpret_cast<const __half2*>(&pair), __float2half2_rn(kKvInt8Bias));
  return *reinterpret_cast<const uint32_t*>(&value);
}

// Four numbers from 4 * `four` on of loaded words.
template <typename Code, int kWords>
__device__ __forceinline__ MmaFactor factor(const uint32_t (&words)[kWords], int four) {
  constexpr int kPairs = kKvPairsPerWord<Code>;
  const int pair = 2 * four;
  return {unbiased(Code{}, kv_pair_to_half_bits(Code{}, words[pair / kPairs], pair % kPairs)),
          unbiased(Code{},
                   kv_pair_to_half_bits(Code{}, words[(pair + 1) / kPairs], (pair + 1) % kPairs))};
}

// To 2^-23 or so of 1, not of a small result: right for logits.
__device__ __forceinline__ float bounded_tanh(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + exp2f(2 * kLog2E * x));
}

// Eight more tokens of a running softmax. A lane has two query heads, (lane & 1) + 4 * (lane / 16)
// and 2 more, whose sums shrink when a maximum grows, and of each four logits. The probabilities
// come out as factors of four tokens each.
template <int kSums>
__device__ __forceinline__ void take_tokens(const MmaSum& logit, float (&max)[2],
                                            float (&weight)[2], MmaSum (&sums)[kSums],
                                            MmaFactor (&probability)[2], int lane) {
  float new_max[2] = {max[0], max[1]};
#pragma unroll
  for (int i = 0; i < 8; ++i) new_max[i >> 1 & 1] = fmaxf(new_max[i >> 1 & 1], logit.at[i]);
#pragma unroll
  for (int j = 0; j < 2; ++j)
    new_max[j] = fmaxf(new_max[j], __shfl_xor_sync(kAllLanes, new_max[j], 2));

  if (__any_sync(kAllLanes, new_max[0] > max[0] || new_max[1] > max[1])) {
    const float shrink[2] = {exp2f(max[0] - new_max[0]), exp2f(max[1] - new_max[1])};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      max[j] = new_max[j];
      weight[j] *= shrink[j];
    }
#pragma unroll
    for (int n = 0; n < kSums; ++n)
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[n].at[i] *= shrink[i >> 1 & 1];
  }

  uint32_t packed[2][2];  // of head j, this lane's two of the four tokens g
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const float low = exp2f(logit.at[4 * g + 2 * j] - max[j] + kProbabilityBits);
      const float high = exp2f(logit.at[4 * g + 2 * j + 1] - max[j] + kProbabilityBits);
      weight[j] += low + high;
      packed[j][g] = half2_bits(low, high);
    }

  // As a factor a lane holds all four tokens of one head: it keeps its own two of that one and
  // trades those of the other head for the rest.
  const bool upper = (lane & 2) != 0;
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    const uint32_t own = upper ? packed[1][g] : packed[0][g];
    const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? packed[0][g] : packed[1][g], 2);
    probability[g] = upper ? MmaFactor{got, own} : MmaFactor{own, got};
  }
}

// kTiles: tiles of 8 query heads that a block serves.
// Grid: splits, KV heads by blocks of query heads, sequences.
template <typename Code, int kDim, int kTiles>
__global__ void __launch_bounds__(32 * kDecodeWarps) decode_split(const DecodeArguments a) {
  constexpr int kRows = kTiles * kTileRows;
  constexpr int kKNumbers = lane_numbers<Code>(kDim, 4);  // quad pairs share a row of K,
  constexpr int kVNumbers = lane_numbers<Code>(kDim, 8);  // their halves a row of V
  constexpr int kKLoads = kDim / (4 * kKNumbers), kKFours = kKNumbers / 4;
  constexpr int kVLoads = kDim / (8 * kVNumbers), kVFours = kVNumbers / 4;
  constexpr int kKWords = kKNumbers * sizeof(Code) / 4, kVWords = kVNumbers * sizeof(Code) / 4;

  const int sequence = blockIdx.z;
  const Visible tokens = visible_tokens(a, sequence);
  const int split = blockIdx.x;
  if (split >= tokens.splits) return;
  const int share = tokens.steps / tokens.splits, more = tokens.steps % tokens.splits;
  const int begin = tokens.first_step + split * share + min(split, more);
  const int end = begin + share + (split < more ? 1 : 0);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int step = begin + warp;

  const int group = a.heads / a.kv_heads;
  const int row_blocks = (group + kRows - 1) / kRows;
  const int kv_head = blockIdx.y / row_blocks;
  const int first_row = blockIdx.y % row_blocks * kRows;  // in the group
  const int rows = min(kRows, group - first_row);
  const int64_t first_head = static_cast<int64_t>(sequence) * a.heads + kv_head * group + first_row;

  const int quad = lane & 3, pair = lane >> 2 & 3, half = lane >> 4;
  const int eighth = quad + 4 * half;  // row of q, column of K

  MmaFactor q[kTiles][kKLoads * kKFours];
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int i = 0; i < kKLoads * kKFours; ++i) {
      const int row = t * kTileRows + eighth;
      const int dim = (i / kKFours * 4 + pair) * kKNumbers + i % kKFours * 4;
      uint32_t words[2] = {0, 0};
      if (row < rows) load_words(a.q + (first_head + row) * kDim + dim, words);
      q[t][i] = {words[0], words[1]};
    }
  // Logits are kept times log2(e). One with a cap is cap * tanh(scaled sum).
  const float logit_scale = a.scale * (a.k_scale ? a.k_scale[kv_head] : 1.0f);
  const float scale = a.soft_cap > 0 ? logit_scale / a.soft_cap : logit_scale * kLog2E;
  const float cap = a.soft_cap * kLog2E;

  const int32_t* const table = a.block_table + static_cast<int64_t>(sequence) * a.max_blocks;
  int block = step < end ? table[step * kStepTokens / a.block_size] : 0;

  MmaSum out[kTiles][kVLoads * kVFours] = {};
  float max[kTiles][2], weight[kTiles][2] = {};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) max[t][0] = max[t][1] = -INFINITY;

  for (; step < end; step += kDecodeWarps) {
    const int token = step * kStepTokens;
    const int64_t row =
        (static_cast<int64_t>(block) * a.kv_heads + kv_head) * a.block_size + token % a.block_size;
    const Code* const k = static_cast<const Code*>(a.k_cache) + (row + eighth) * kDim;
    const Code* const v = static_cast<const Code*>(a.v_cache) + (row + quad) * kDim;
    uint32_t k_words[kKLoads][kKWords], v_words[2][kVLoads][kVWords];
#pragma unroll
    for (int i = 0; i < kKLoads; ++i) load_words(k + (i * 4 + pair) * kKNumbers, k_words[i]);
#pragma unroll
    for (int g = 0; g < 2; ++g)
#pragma unroll
      for (int i = 0; i < kVLoads; ++i)
        load_words(v + 4 * g * kDim + (i * 8 + pair * 2 + half) * kVNumbers, v_words[g][i]);
    if (step + kDecodeWarps < end)
      block = table[(step + kDecodeWarps) * kStepTokens / a.block_size];

    const bool partly = token < tokens.first || token + kStepTokens > tokens.length;
    if (partly) {
      // Zero probability does not silence what a row out of sight holds, maybe NaN.
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int at = token + 4 * g + quad;
        const uint32_t seen = at >= tokens.first && at < tokens.length ? ~0u : 0u;
#pragma unroll
        for (int i = 0; i < kVLoads; ++i)
#pragma unroll
          for (int w = 0; w < kVWords; ++w) v_words[g][i][w] &= seen;
      }
    }

    MmaSum logit[kTiles] = {};
#pragma unroll
    for (int i = 0; i < kKLoads * kKFours; ++i) {
      const MmaFactor keys = factor<Code>(k_words[i / kKFours], i % kKFours);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) mma_by_columns(logit[t], q[t][i], keys);
    }

    MmaFactor probability[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& s = logit[t].at[i];
        s += __shfl_xor_sync(kAllLanes, s, 4);
        s += __shfl_xor_sync(kAllLanes, s, 8);
        s *= scale;
        if (cap > 0) s = cap * bounded_tanh(s);
        const int at = token + (i & 4) + (lane & 2) + (i & 1);
        if (partly && (at < tokens.first || at >= tokens.length)) s = -INFINITY;
      }
      take_tokens(logit[t], max[t], weight[t], out[t], probability[t], lane);
    }

#pragma unroll
    for (int g = 0; g < 2; ++g)
#pragma unroll
      for (int i = 0; i < kVLoads * kVFours; ++i) {
        const MmaFactor values = factor<Code>(v_words[g][i / kVFours], i % kVFours);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) mma_by_rows(out[t][i], probability[t][g], values);
      }
  }

  // The warps' sums become the split's.
  __shared__ float4 shared_out[kDecodeWarps][kRows][kDim / 4];
  __shared__ float shared_max[kDecodeWarps][kRows], shared_weight[kDecodeWarps][kRows];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = t * kTileRows + (lane & 1) + 4 * half + 2 * j;
      weight[t][j] += __shfl_xor_sync(kAllLanes, weight[t][j], 2);
      if (pair == 0 && (lane & 2) == 0) {
        shared_max[warp][row] = max[t][j];
        shared_weight[warp][row] = weight[t][j];
      }
#pragma unroll
      for (int n = 0; n < kVLoads * kVFours; ++n)
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          const int dim = (n / kVFours * 8 + pair * 2 + g) * kVNumbers + n % kVFours * 4;
          float2* const to = reinterpret_cast<float2*>(&shared_out[warp][row][dim / 4]);
          to[(lane & 2) / 2] =
              make_float2(out[t][n].at[4 * g + 2 * j], out[t][n].at[4 * g + 2 * j + 1]);
        }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * (kDim / 4); i += 32 * kDecodeWarps) {
    const int row = i / (kDim / 4), column = i % (kDim / 4);
    PartialSums sums;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w)
      sums.add(shared_out[w][row][column], shared_max[w][row], shared_weight[w][row]);
    float4* const to = reinterpret_cast<float4*>(
        a.partials + ((first_head + row) * a.splits + split) * (kDim + 4));
    to[column] = sums.out;
    if (column == 0) to[kDim / 4] = make_float4(sums.max, sums.weight, 0, 0);
  }
}

}  // namespace volta
