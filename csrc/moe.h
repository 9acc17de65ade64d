// Mixture of experts: what surrounds the experts' matrices.
//
// An assignment is one (token, chosen expert) pair: number token * top_k + slot. Whatever has a row
// per assignment has it at that number; sorting only makes a list of the numbers, expert by expert.
// A rank of an expert-parallel group owns the experts [first, first + count); an id outside of them
// (-1 too) is skipped everywhere.
#pragma once

#include "kernels.h"

namespace volta {

// How a logit becomes a score.
enum MoeScoring : int {
  kMoeSoftmax = 0,  // over all experts (Mixtral, Qwen3-MoE, gpt-oss)
  kMoeSigmoid = 1,  // each on its own (DeepSeek-V3, GLM-4.5)
};

constexpr int kMoeMaxExperts = 512;
constexpr int kMoeMaxTopK = 32;    // a lane each
constexpr int kMoeMaxGroups = 32;  // a lane each
constexpr int kMoeMaxTile = 128;   // rows
constexpr int kMoeChunk = 4096;    // assignments that one block sorts
constexpr int64_t kMoeMaxAssignments = 1 << 30;
constexpr int64_t kMoeMaxWidth = 1 << 20;

}  // namespace volta

extern "C" {

// weights and ids [tokens][top_k] of the experts with the largest choice, the largest first, equal
// ones by id. logits [tokens][experts] are FP32, or FP16 where half_logits.
//
// score = softmax or sigmoid of the logit; choice = score + bias[expert], bias may be null; weight
// = score * scale, divided by the sum of the token's chosen scores where renormalize (a softmax
// over the chosen logits is the same). Groups: 0, or up to kMoeMaxGroups equal ones of at least two
// experts; only experts of the top_groups groups whose two best choices have the largest sums are
// chosen. A NaN is the last to be chosen.
int volta_moe_route_cpu(const void* logits, int half_logits, const float* bias, float* weights,
                        int32_t* ids, int64_t tokens, int64_t experts, int64_t top_k, int scoring,
                        int renormalize, int64_t groups, int64_t top_groups, float scale,
                        int threads);
int volta_moe_route_cuda(const void* logits, int half_logits, const float* bias, float* weights,
                         int32_t* ids, int64_t tokens, int64_t experts, int64_t top_k, int scoring,
                         int renormalize, int64_t groups, int64_t top_groups, float scale,
                         cudaStream_t stream);

// A stable sort by expert: sorted[offsets[e] ... offsets[e + 1]) are the assignments of expert
// first + e in ascending order, then come -1. offsets is [count + 1].
//
// Tile i is the rows [tile_row[i], tile_row[i] + tile) of `sorted`, as far as offsets[e + 1], all
// of expert first + e with e = tile_expert[i]; of unused tiles, the last ones, both are -1. tiles
// is at least min(assignments, count) + assignments / tile, which always suffices. workspace is
// [ceil(assignments / kMoeChunk)][count], on CUDA and for more than kMoeChunk assignments alone.
int volta_moe_permute_cpu(const int32_t* ids, int32_t* sorted, int32_t* offsets,
                          int32_t* tile_expert, int32_t* tile_row, int32_t* workspace,
                          int64_t assignments, int64_t first, int64_t count, int64_t tile,
                          int64_t tiles, int threads);
int volta_moe_permute_cuda(const int32_t* ids, int32_t* sorted, int32_t* offsets,
                           int32_t* tile_expert, int32_t* tile_row, int32_t* workspace,
                           int64_t assignments, int64_t first, int64_t count, int64_t tile,
                           int64_t tiles, cudaStream_t stream);

// out[t] = sum over slots of weights[t][slot] * y[t * top_k + slot], in FP32 and in the order of
// the slots, then + shared[t] where given; rounded once, what is finite stays finite. Rows of
// skipped experts are not read. y [tokens * top_k][width], shared and out [tokens][width] are
// activations.
int volta_moe_combine_cpu(const void* y, const float* weights, const int32_t* ids,
                          const void* shared, void* out, int64_t tokens, int64_t top_k,
                          int64_t width, int64_t first, int64_t count, int threads);
int volta_moe_combine_cuda(const void* y, const float* weights, const int32_t* ids,
                           const void* shared, void* out, int64_t tokens, int64_t top_k,
                           int64_t width, int64_t first, int64_t count, cudaStream_t stream);

}  // extern "C"
