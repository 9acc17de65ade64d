// Routing, element by element: the order of choices, the score of a logit, and whose an expert is.
#pragma once

#include <cmath>
#include <cstdint>

#include "half.h"
#include "moe.h"

namespace volta {

// Choices are compared as integers in the order of their floats: so zeros of both signs are equal
// and a NaN has a place, the last, and never leaves a slot without an expert.
constexpr int32_t kMoeTaken = INT32_MIN;  // below every choice
constexpr int32_t kMoeNan = INT32_MIN + 1;

VOLTA_HD int32_t moe_order(float choice) {
  if (choice != choice) return kMoeNan;
  choice += 0.0f;  // -0 becomes 0
  const int32_t bits = static_cast<int32_t>(float_to_bits(choice));
  return bits ^ (bits >> 31 & INT32_MAX);
}

VOLTA_HD float moe_choice(int32_t order) {
  return bits_to_float(static_cast<uint32_t>(order ^ (order >> 31 & INT32_MAX)));
}

struct MoeRouting {
  int experts, top_k, scoring, renormalize, groups, top_groups;
  float scale;
};

// max and sum are the softmax's.
VOLTA_HD float moe_score(int scoring, float logit, float max, float sum) {
  if (scoring == kMoeSigmoid) return 1.0f / (1.0f + expf(-logit));
  return expf(logit - max) / sum;
}

// Softmax and sigmoid keep the order of the logits, but FP32 scores may tie where logits do not. So
// scores are compared only where they are added to something.
VOLTA_HD bool moe_chooses_by_logit(const MoeRouting& r, const float* bias) {
  return bias == nullptr && r.groups == 0;
}

// Then a softmax's sum is that of the chosen logits, which cannot have become 0 beside another's.
VOLTA_HD bool moe_softmax_of_chosen(const MoeRouting& r) {
  return r.scoring == kMoeSoftmax && r.renormalize;
}

// Keeps a sum of sigmoids that all became 0 from giving NaN, as DeepSeek-V3's own code does.
constexpr float kMoeSmallestSum = 1e-20f;

// An id's number among the rank's own experts, or -1.
VOLTA_HD int moe_local_expert(int id, int first, int count) {
  return id >= first && id - first < count ? id - first : -1;
}

}  // namespace volta
