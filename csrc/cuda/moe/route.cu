// Top-k routing, one warp a token. The choices are made in loops over neighbouring experts and pass
// through shared memory: there, then in registers, a lane has neighbouring experts, so that of
// equal choices the lowest expert is in the lowest lane. In each of top_k rounds the warp's best is
// found, noted by the lane of that round, and taken.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../../moe_math.h"
#include "../../moe_sizes.h"
#include "warp.cuh"

namespace volta {
namespace {

constexpr int kTokensPerBlock = 4;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

// Which groups keep their experts, as a mask. Lane g looks at group g; order is the token's choices
// in shared memory.
__device__ unsigned kept_groups(const MoeRouting& r, const int* order, int lane) {
  int group = kMoeTaken;
  if (lane < r.groups) {
    const int size = r.experts / r.groups;
    int best = kMoeTaken, second = kMoeTaken;
    // Starting at different places, lanes meet in fewer banks.
    for (int i = 0, at = lane % size; i < size; ++i, at = at + 1 < size ? at + 1 : 0) {
      const int choice = order[lane * size + at];
      second = max(second, min(best, choice));
      best = max(best, choice);
    }
    group = moe_order(moe_choice(best) + moe_choice(second));
  }
  int better = 0;
  for (int other = 0; other < r.groups; ++other) {
    const int theirs = __shfl_sync(kAllLanes, group, other);
    better += theirs > group || (theirs == group && other < lane);
  }
  return __ballot_sync(kAllLanes, lane < r.groups && better < r.top_groups);
}

// kPerLane: experts a lane has, those from lane * kPerLane on.
template <int kPerLane, typename Logit>
__global__ void __launch_bounds__(kWarp* kTokensPerBlock)
    moe_route(const Logit* __restrict__ logits, const float* __restrict__ bias,
              float* __restrict__ weights, int* __restrict__ ids, int tokens, MoeRouting r) {
  alignas(16) __shared__ int shared[kTokensPerBlock][kWarp * kPerLane];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int token = blockIdx.x * kTokensPerBlock + warp;
  if (token >= tokens) return;
  const Logit* row = logits + static_cast<size_t>(token) * r.experts;

  float max = -INFINITY, sum = 0;
  if (r.scoring == kMoeSoftmax) {
    for (int e = lane; e < r.experts; e += kWarp) max = fmaxf(max, to_float(row[e]));
    max = warp_max(max);
    for (int e = lane; e < r.experts; e += kWarp) sum += expf(to_float(row[e]) - max);
    sum = warp_sum(sum);
  }

  const bool by_logit = moe_chooses_by_logit(r, bias);
  for (int e = lane; e < r.experts; e += kWarp) {
    float choice = to_float(row[e]);
    if (!by_logit) choice = moe_score(r.scoring, choice, max, sum);
    if (bias) choice += bias[e];
    shared[warp][e] = moe_order(choice);
  }
  __syncwarp();
  const unsigned kept = r.groups ? kept_groups(r, shared[warp], lane) : 0;

  const int first = lane * kPerLane;
  int order[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    order[j] = shared[warp][first + j];
    const bool out_of_groups = r.groups && !(kept >> (first + j) / (r.experts / r.groups) & 1);
    if (first + j >= r.experts || out_of_groups) order[j] = kMoeTaken;
  }

  int chosen = 0;  // by this lane's round
  for (int slot = 0; slot < r.top_k; ++slot) {
    int best = order[0], expert = first;
#pragma unroll
    for (int j = 1; j < kPerLane; ++j) {
      if (order[j] <= best) continue;
      best = order[j];
      expert = first + j;
    }
    const unsigned holders = __ballot_sync(kAllLanes, best == warp_max(best));
    expert = __shfl_sync(kAllLanes, expert, __ffs(holders) - 1);
    if (lane == slot) chosen = expert;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (first + j == expert) order[j] = kMoeTaken;
  }

  const bool holds = lane < r.top_k;
  const float mine = holds ? to_float(row[chosen]) : -INFINITY;
  if (moe_softmax_of_chosen(r)) {
    max = warp_max(mine);
    sum = 1;
  }
  float weight = holds ? moe_score(r.scoring, mine, max, sum) : 0.0f;
  if (r.renormalize) weight /= warp_sum(weight) + kMoeSmallestSum;
  if (!holds) return;
  const size_t at = static_cast<size_t>(token) * r.top_k + lane;
  weights[at] = weight * r.scale;
  ids[at] = chosen;
}

template <typename Logit>
void launch(const void* logits, const float* bias, float* weights, int* ids, int tokens,
            const MoeRouting& r, cudaStream_t stream) {
  using Kernel = void (*)(const Logit*, const float*, float*, int*, int, MoeRouting);
  constexpr Kernel kByLaneBits[] = {moe_route<1, Logit>, moe_route<2, Logit>, moe_route<4, Logit>,
                                    moe_route<8, Logit>, moe_route<16, Logit>};
  int lane_bits = 0;
  while (kWarp << lane_bits < r.experts) ++lane_bits;
  const int blocks = (tokens + kTokensPerBlock - 1) / kTokensPerBlock;
  kByLaneBits[lane_bits]<<<blocks, kWarp * kTokensPerBlock, 0, stream>>>(
      static_cast<const Logit*>(logits), bias, weights, ids, tokens, r);
}

}  // namespace
}  // namespace volta

int volta_moe_route_cuda(const void* logits, int half_logits, const float* bias, float* weights,
                         int32_t* ids, int64_t tokens, int64_t experts, int64_t top_k, int scoring,
                         int renormalize, int64_t groups, int64_t top_groups, float scale,
                         cudaStream_t stream) {
  using namespace volta;
  if (!moe_scoring_known(scoring)) return kBadFormat;
  if (!moe_route_takes(tokens, experts, top_k, groups, top_groups)) return kBadShape;
  const MoeRouting r = {
      static_cast<int>(experts), static_cast<int>(top_k),      scoring, renormalize,
      static_cast<int>(groups),  static_cast<int>(top_groups), scale};
  const auto start = half_logits ? launch<__half> : launch<float>;
  start(logits, bias, weights, ids, static_cast<int>(tokens), r, stream);
  return cudaGetLastError();
}
