// What drawing a token computes, the same to the last bit on CPU and CUDA: every product and sum is
// rounded by itself (no compiler may fuse them), and masses are integers, whose sums do not depend
// on who adds what first.
//
// A row's tokens are ranked by logit, ties by lower index. All cuts keep the head of that ranking:
// top-k by a count, top-p by a mass, min-p by a weight. So a cut is a rank key, found by radix
// search. The draw is an exponential race: token i with weight w takes the time E_i / w, E_i
// exponential noise of Philox4x32-10 keyed by seed, step and i alone, and the first one wins, which
// it does with probability w / sum of w.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "half.h"

namespace volta {

#ifdef __CUDA_ARCH__
VOLTA_HD float add(float a, float b) { return __fadd_rn(a, b); }
VOLTA_HD float mul(float a, float b) { return __fmul_rn(a, b); }
VOLTA_HD float divide(float a, float b) { return __fdiv_rn(a, b); }
#else  // compiled with -ffp-contract=off
VOLTA_HD float add(float a, float b) { return a + b; }
VOLTA_HD float mul(float a, float b) { return a * b; }
VOLTA_HD float divide(float a, float b) { return a / b; }
#endif

constexpr int kVocabBits = 20;
constexpr int64_t kMaxVocab = int64_t{1} << kVocabBits;  // where the sum of masses ends too
constexpr int64_t kMaxTopLogprobs = 20;                  // as the OpenAI API allows

// NaN counts as -inf, inf as the largest float, -0 as 0.
VOLTA_HD float clean_logit(float x) {
  if (!(x <= FLT_MAX)) x = x > FLT_MAX ? FLT_MAX : -INFINITY;
  return add(x, 0.0f);
}

// --- Penalties ---------------------------------------------------------------------------------
struct Penalties {
  float repetition, frequency, presence;
};

VOLTA_HD bool penalises(const Penalties& p) {
  return p.repetition != 1.0f || p.frequency != 0.0f || p.presence != 0.0f;
}

// The logit of a token of the prompt or, count times, of the output.
VOLTA_HD float penalised(float logit, int count, const Penalties& p) {
  const float repeated = logit > 0.0f ? divide(logit, p.repetition) : mul(logit, p.repetition);
  const float often = add(repeated, -mul(p.frequency, static_cast<float>(count)));
  return count > 0 ? add(often, -p.presence) : often;
}

// --- Ranking -----------------------------------------------------------------------------------
constexpr int kDigitBits = 10;  // of a rank key, in the radix search
constexpr int kDigits = 6;
constexpr int kBins = 1 << kDigitBits;

// Larger for a larger clean logit, and for a lower index among equal ones. Never zero.
VOLTA_HD uint64_t rank_key(float logit, int64_t index) {
  const uint32_t bits = float_to_bits(logit);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << kVocabBits | static_cast<uint64_t>(kMaxVocab - 1 - index);
}

VOLTA_HD int64_t key_index(uint64_t key) {
  return kMaxVocab - 1 - static_cast<int64_t>(key & (kMaxVocab - 1));
}

VOLTA_HD float key_logit(uint64_t key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> kVocabBits);
  return bits_to_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

// --- Weights -----------------------------------------------------------------------------------
// Depth is how far below the row's maximum a logit lies, in nats after the temperature. A token of
// kMaxDepth and more, 2.5e-13 times as likely as the first, is not drawn.
constexpr float kMaxDepth = 29.0f;
constexpr float kBinsPerNat = 32.0f;  // kBins reach deeper than that

VOLTA_HD float depth_of(float logit, float max, float inverse_temperature) {
  return mul(add(max, -logit), inverse_temperature);
}

VOLTA_HD int depth_bin(float depth) {
  constexpr float kAnchor = 8388608.0f;  // 2^23: adding it rounds to an integer
  return static_cast<int>(float_to_bits(add(mul(depth, kBinsPerNat), kAnchor)) -
                          float_to_bits(kAnchor));
}

// e^-depth within 2 ulp, exactly 1 for 0; 0 <= depth < 88.
VOLTA_HD float weight_of(float depth) {
  constexpr float kAnchor = 12582912.0f;  // 1.5 * 2^23
  const float shifted = add(mul(depth, -1.44269504f), kAnchor);
  const float n = add(shifted, -kAnchor);
  // ln 2 in two parts, the first so short that n times it is exact.
  const float r = add(add(-depth, mul(n, -0.693359375f)), mul(n, 2.12194440e-4f));
  float p = 0.0013926250394433737f;  // minimax for (e^r - 1 - r) / r^2, |r| <= ln 2 / 2
  p = add(mul(p, r), 0.00836323294788599f);
  p = add(mul(p, r), 0.04166655242443085f);
  p = add(mul(p, r), 0.16666576266288757f);
  p = add(mul(p, r), 0.5f);
  const float y = add(1.0f, add(r, mul(mul(r, r), p)));
  const uint32_t exponent = float_to_bits(shifted) - float_to_bits(kAnchor);
  return bits_to_float(float_to_bits(y) + (exponent << 23));
}

// A weight in units of 2^-43, rounded down: above zero for every depth below kMaxDepth, and a
// vocabulary's sum fits 64 bits.
VOLTA_HD uint64_t mass_of(float weight) {
  const uint32_t bits = float_to_bits(weight);
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  return (mantissa << 20) >> (127 - (bits >> 23));
}

// The mass top-p has to reach, of a total of at least 1.
VOLTA_HD uint64_t nucleus_mass(float top_p, uint64_t total) {
  const double mass = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  if (!(mass >= 1.0)) return 1;
  return mass < static_cast<double>(total) ? static_cast<uint64_t>(mass) : total;
}

// --- Noise -------------------------------------------------------------------------------------
// Philox4x32-10 (Salmon et al., 2011) keyed by the seed. Word i % 4 of counter (i / 4, 0, step) is
// the noise of token i.
VOLTA_HD void philox(uint64_t seed, uint64_t step, uint32_t block, uint32_t (&out)[4]) {
  uint32_t c0 = block, c1 = 0;
  uint32_t c2 = static_cast<uint32_t>(step), c3 = static_cast<uint32_t>(step >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

// A word as a number of (0, 1); the small ones, which win races, keep their full precision.
VOLTA_HD float uniform_of(uint32_t word) {
  const float v = mul(add(static_cast<float>(word), 0.5f), 2.3283064365386963e-10f);  // 2^-32
  return v < 0.99999994f ? v : 0.99999994f;
}

// -log(1 - v) for 0 < v < 1, exponentially distributed: -log of m * 2^e by 2 artanh.
VOLTA_HD float exponential_of(float v) {
  float less = -v, more = add(2.0f, -v), e = 0.0f;  // m - 1, m + 1
  if (v > 0.29f) {
    constexpr uint32_t kRootHalf = 0x3f3504f3u;  // m from there to its double
    const uint32_t bits = float_to_bits(add(1.0f, -v)) + (0x3f800000u - kRootHalf);
    const float m = bits_to_float((bits & 0x7fffffu) + kRootHalf);
    e = static_cast<float>(static_cast<int>(bits >> 23) - 127);
    less = add(m, -1.0f);
    more = add(m, 1.0f);
  }
  const float s = divide(less, more), q = mul(s, s);
  float p = 1.0f / 9;
  p = add(mul(p, q), 1.0f / 7);
  p = add(mul(p, q), 1.0f / 5);
  p = add(mul(p, q), 1.0f / 3);
  const float artanh = add(s, mul(s, mul(q, p)));
  return -add(mul(e, 0.69314718f), mul(2.0f, artanh));
}

// The race's leader: the least time, ties by the lower index.
struct Leader {
  float time;
  int index;
};

VOLTA_HD void race(Leader& leader, int index, float weight, uint32_t word) {
  const float v = uniform_of(word);
  // -log(1 - v) >= v, so most tokens have lost here. The factor outweighs every rounding.
  if (v > mul(mul(leader.time, weight), 1.00001f)) return;
  const float time = divide(exponential_of(v), weight);
  if (time < leader.time || (time == leader.time && index < leader.index)) leader = {time, index};
}

// --- What a row asks for -----------------------------------------------------------------------
// Arrays of one entry per row, in the meaning of volta_sample.
struct SampleParams {
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int64_t* steps;
};

struct Request {
  bool greedy;
  float inverse_temperature;
  uint32_t top_k;  // 0: all
  bool nucleus;    // whether top_p cuts
  float top_p;
  float min_p;
  uint64_t seed, step;
};

VOLTA_HD Request request_of(const SampleParams& p, int64_t row) {
  constexpr float kLeastTemperature = 1e-5f;  // below it the likeliest token is certain
  Request r;
  const float temperature = p.temperature[row];
  const int top_k = p.top_k[row];
  r.greedy = !(temperature >= kLeastTemperature) || top_k == 1;
  r.inverse_temperature = divide(1.0f, temperature);
  r.top_k = top_k > 0 ? static_cast<uint32_t>(top_k) : 0;
  r.top_p = p.top_p[row];
  r.nucleus = r.top_p < 1.0f;
  r.min_p = p.min_p[row] < 1.0f ? p.min_p[row] : 1.0f;
  if (!(p.min_p[row] > 0.0f)) r.min_p = 0.0f;
  r.seed = static_cast<uint64_t>(p.seeds[row]);
  r.step = static_cast<uint64_t>(p.steps[row]);
  return r;
}

}  // namespace volta
