// Which sizes the launchers of moe.h take, the same on CPU and CUDA.
#pragma once

#include "kernels.h"

namespace volta {

inline bool moe_scoring_known(int scoring) {
  return scoring == kMoeSoftmax || scoring == kMoeSigmoid;
}

inline bool moe_assignments_fit(int64_t tokens, int64_t top_k) {
  return top_k >= 1 && top_k <= kMoeMaxTopK && tokens >= 1 && tokens <= kMoeMaxAssignments / top_k;
}

inline bool moe_experts_fit(int64_t first, int64_t count) {
  return first >= 0 && first < kMoeMaxExperts && count >= 1 && count <= kMoeMaxExperts - first;
}

inline bool moe_route_takes(int64_t tokens, int64_t experts, int64_t top_k, int64_t groups,
                            int64_t top_groups) {
  if (!moe_assignments_fit(tokens, top_k) || experts < top_k || experts > kMoeMaxExperts)
    return false;
  if (groups == 0) return top_groups == 0;
  return groups > 0 && groups <= kMoeMaxGroups && experts % groups == 0 && experts / groups >= 2 &&
         top_groups >= 1 && top_groups <= groups && top_groups * (experts / groups) >= top_k;
}

inline bool moe_permute_takes(int64_t assignments, int64_t first, int64_t count, int64_t tile,
                              int64_t tiles) {
  return assignments >= 0 && assignments <= kMoeMaxAssignments && moe_experts_fit(first, count) &&
         tile >= 1 && tile <= kMoeMaxTile && tiles <= kMaxSize &&
         tiles >= (assignments < count ? assignments : count) + assignments / tile;
}

inline bool moe_combine_takes(int64_t tokens, int64_t top_k, int64_t width, int64_t first,
                              int64_t count) {
  return moe_assignments_fit(tokens, top_k) && moe_experts_fit(first, count) && width >= 1 &&
         width <= kMoeMaxWidth;
}

}  // namespace volta
