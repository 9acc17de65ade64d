// What attention on the CPU and on CUDA computes alike.
#pragma once

#include <cmath>
#include <cstdint>

#include "half.h"

namespace volta {

constexpr int kDecodeMinTokens = 128;   // of a split, so that joining the splits costs little
constexpr int kDecodeMaxTokens = 4096;  // of a split, so that no long sequence ends alone

// A logit bent to stay within +-soft_cap; 0 leaves it.
VOLTA_HD float capped(float logit, float soft_cap) {
  return soft_cap > 0 ? soft_cap * tanhf(logit / soft_cap) : logit;
}

// The first token that the last of `length` tokens sees; a window of 0 has no end.
VOLTA_HD int64_t first_visible(int64_t length, int64_t window) {
  return window > 0 && window < length ? length - window : 0;
}

}  // namespace volta
