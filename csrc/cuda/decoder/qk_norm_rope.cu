// RMSNorm and rotary embedding of query and key heads, in place. A group of lanes takes a head; a
// lane takes a few units of 2 kVec elements, which are kVec pairs to rotate: two vectors half the
// rotated part apart, or side by side where pairs are interleaved and where nothing is rotated.
#include "../../decoder_math.h"
#include "../../kernels.h"
#include "vector.cuh"

namespace volta {
namespace {

constexpr int kThreads = 128;

struct Heads {
  __half* qkv;
  const __half *q_weight, *k_weight;
  const float* cos_sin;
  const void* positions;
  int64_t stride, max_positions;
  unsigned items, rotated;  // heads of all tokens, of a token
  int queries;
  int head_dim, rotary_dim, index_bytes;
  int log_group;  // of the number of lanes of a head
  float eps, offset;
};

template <int kVec>
struct Unit {
  Vector<__half, kVec> x[2], weight[2];
  Vector<float, kVec> cosine, sine;
};

template <int kVec>
__device__ __forceinline__ void unpack_two(const Vector<__half, kVec> (&from)[2],
                                           float (&to)[2 * kVec]) {
  unpack(from[0], to);
  unpack(from[1], to + kVec);
}

template <int kVec, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) qk_norm_rope(const Heads of) {
  constexpr int kUnits = kMaxHeadDim / (kWarp * 2 * kVec);  // a lane
  const int group = 1 << of.log_group, lane = threadIdx.x & (group - 1);
  const unsigned item = blockIdx.x * (kThreads >> of.log_group) + (threadIdx.x >> of.log_group);
  const bool active = item < of.items;
  const unsigned token = active ? item / of.rotated : 0;
  const int64_t head = item - token * of.rotated;
  __half* x = of.qkv + token * of.stride + head * of.head_dim;
  const __half* weight = head < of.queries ? of.q_weight : of.k_weight;
  const int rotated_units = of.rotary_dim / (2 * kVec);
  const int units = !active ? 0 : weight ? of.head_dim / (2 * kVec) : rotated_units;

  const int64_t position = index_at(of.positions, of.index_bytes, token);
  const bool known = in_table(position, 0, of.max_positions);
  const float* cosines = of.cos_sin + (known ? position : 0) * of.rotary_dim;

  const auto first = [&](int unit) {
    return (kInterleaved || unit >= rotated_units ? 2 * unit : unit) * kVec;
  };
  const auto second = [&](int unit) {
    return first(unit) + (kInterleaved || unit >= rotated_units ? kVec : of.rotary_dim / 2);
  };

  Unit<kVec> held[kUnits] = {};  // zeros add nothing
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int unit = lane + i * group;
    if (unit < units) {
      load(x + first(unit), held[i].x[0]);
      load(x + second(unit), held[i].x[1]);
      if (weight) {
        load(weight + first(unit), held[i].weight[0]);
        load(weight + second(unit), held[i].weight[1]);
      }
      if (unit < rotated_units && known) {
        load(cosines + unit * kVec, held[i].cosine);
        load(cosines + of.rotary_dim / 2 + unit * kVec, held[i].sine);
      } else if (unit < rotated_units) {
#pragma unroll
        for (float& value : held[i].cosine.value) value = NAN;
      }
    }
  }

  float sum = 0;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    float values[2 * kVec];
    unpack_two(held[i].x, values);
#pragma unroll
    for (int j = 0; j < 2 * kVec; ++j) sum += values[j] * values[j];
  }
  for (int distance = group / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(~0u, sum, distance);
  const float factor = inverse_rms(sum, of.head_dim, of.eps);

#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int unit = lane + i * group;
    if (unit < units) {
      float values[2 * kVec];
      unpack_two(held[i].x, values);
      if (weight) {
        float scales[2 * kVec];
        unpack_two(held[i].weight, scales);
#pragma unroll
        for (int j = 0; j < 2 * kVec; ++j) values[j] *= factor * (scales[j] + of.offset);
      }
      if (unit < rotated_units) {
#pragma unroll
        for (int j = 0; j < kVec; ++j)
          rotate(values[kInterleaved ? 2 * j : j], values[kInterleaved ? 2 * j + 1 : kVec + j],
                 held[i].cosine.value[j], held[i].sine.value[j]);
      }
      pack(values, held[i].x[0]);
      pack(values + kVec, held[i].x[1]);
      store(x + first(unit), held[i].x[0]);
      store(x + second(unit), held[i].x[1]);
    }
  }
}

}  // namespace
}  // namespace volta

int volta_qk_norm_rope_cuda(void* qkv, const void* q_weight, const void* k_weight,
                            const float* cos_sin, const void* positions, int index_bytes,
                            int64_t tokens, int64_t stride, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t rotary_dim, int64_t max_positions,
                            int interleaved, float eps, float offset, cudaStream_t stream) {
  using namespace volta;
  if (!fits_index(index_bytes)) return kBadFormat;
  if (!fits_heads(tokens, stride, heads, kv_heads, head_dim, rotary_dim)) return kBadShape;
  const int64_t rotated = heads + kv_heads;
  if (rotated > kMaxSize || tokens > (kMaxSize - kThreads) / rotated) return kBadShape;
  const int64_t items = tokens * rotated;
  int log_group = 0;
  while ((kMaxHeadDim / kWarp) << log_group < head_dim) ++log_group;
  const int64_t blocks = ((items << log_group) + kThreads - 1) / kThreads;
  const bool wide = head_dim % 16 == 0 && rotary_dim % 16 == 0 && stride % 8 == 0;
  const auto kernel = wide ? (interleaved ? qk_norm_rope<8, true> : qk_norm_rope<8, false>)
                           : (interleaved ? qk_norm_rope<1, true> : qk_norm_rope<1, false>);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      Heads{static_cast<__half*>(qkv), static_cast<const __half*>(q_weight),
            static_cast<const __half*>(k_weight), cos_sin, positions, stride, max_positions,
            static_cast<unsigned>(items), static_cast<unsigned>(rotated), static_cast<int>(heads),
            static_cast<int>(head_dim), static_cast<int>(rotary_dim), index_bytes, log_group, eps,
            offset});
  return cudaGetLastError();
}
