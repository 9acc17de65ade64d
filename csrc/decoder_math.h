// The arithmetic of a decoder step's small operations, shared by the CPU and the CUDA kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "half.h"

namespace volta {

// exp and division to a few units of FP32's last place: results are rounded to FP16 on CUDA.
VOLTA_HD float quick_exp(float x) {
#ifdef __CUDA_ARCH__
  return __expf(x);
#else
  return std::exp(x);
#endif
}

VOLTA_HD float quick_divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

// What RMSNorm multiplies by.
VOLTA_HD float inverse_rms(float sum_of_squares, int64_t count, float eps) {
  const float mean = quick_divide(sum_of_squares, static_cast<float>(count)) + eps;
#ifdef __CUDA_ARCH__
  return rsqrtf(mean);
#else
  return 1.0f / std::sqrt(mean);
#endif
}

constexpr int64_t kMaxHeadDim = 512;

VOLTA_HD bool fits_heads(int64_t tokens, int64_t stride, int64_t heads, int64_t kv_heads,
                         int64_t head_dim, int64_t rotary_dim) {
  return tokens > 0 && heads >= 0 && kv_heads >= 0 && heads + kv_heads > 0 && head_dim > 0 &&
         head_dim <= kMaxHeadDim && head_dim % 2 == 0 && rotary_dim >= 0 &&
         rotary_dim <= head_dim && rotary_dim % 2 == 0 && stride >= (heads + kv_heads) * head_dim;
}

// Turns the pair (a, b) by the angle of this cosine and sine.
VOLTA_HD void rotate(float& a, float& b, float cosine, float sine) {
  const float turned = a * cosine - b * sine;
  b = b * cosine + a * sine;
  a = turned;
}

VOLTA_HD int64_t index_at(const void* indices, int index_bytes, int64_t i) {
  return index_bytes == 8 ? static_cast<const int64_t*>(indices)[i]
                          : static_cast<const int32_t*>(indices)[i];
}

VOLTA_HD bool fits_index(int index_bytes) { return index_bytes == 4 || index_bytes == 8; }

// Of a table whose rows are numbered from `first`, which is not negative.
VOLTA_HD bool in_table(int64_t index, int64_t first, int64_t rows) {
  return index >= first && index - first < rows;
}

// x * sigmoid(z). Where exp leaves FP32's range the quotient is 0, which is right.
VOLTA_HD float times_sigmoid(float x, float z) { return quick_divide(x, 1.0f + quick_exp(-z)); }

// Gated activations: activate(gate) * (up + kUpBias).
struct Silu {
  static constexpr float kUpBias = 0.0f;
};
struct GeluTanh {
  static constexpr float kUpBias = 0.0f;
};
struct Gelu {
  static constexpr float kUpBias = 0.0f;
};
struct SwigluOai {  // of gpt-oss
  static constexpr float kUpBias = 1.0f;
};

VOLTA_HD float activate(Silu, float gate) { return times_sigmoid(gate, gate); }

// (1 + tanh(u)) / 2 is sigmoid(2u), which keeps the small results that 1 + tanh(u) cancels.
VOLTA_HD float activate(GeluTanh, float gate) {
  constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
  return times_sigmoid(gate, kTwoSqrtTwoOverPi * (gate + 0.044715f * gate * gate * gate));
}

// (1 + erf(u)) / 2 is erfc(-u) / 2, likewise.
VOLTA_HD float activate(Gelu, float gate) {
  return 0.5f * gate * erfcf(gate * -0.7071067811865476f);
}

VOLTA_HD float activate(SwigluOai, float gate) { return times_sigmoid(gate, 1.702f * gate); }

// Calls use(Kind{}) for the kind's number, which ops/activation.py names; others give `otherwise`.
template <typename Use>
int with_activation(int kind, int otherwise, const Use& use) {
  switch (kind) {
    case 0:
      return use(Silu{});
    case 1:
      return use(GeluTanh{});
    case 2:
      return use(Gelu{});
    case 3:
      return use(SwigluOai{});
    default:
      return otherwise;
  }
}

// Comparisons, as fminf would turn NaN into the limit. limit: infinity for none.
template <typename Kind>
VOLTA_HD float gated(Kind kind, float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return activate(kind, gate) * (up + Kind::kUpBias);
}

}  // namespace volta
