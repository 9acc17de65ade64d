// The small operations of a decoder step, in FP32, one row of work at a time.
#include <algorithm>
#include <limits>

#include "../decoder_math.h"
#include "../kernels.h"
#include "thread_pool.h"

namespace volta {
namespace {

// Elements that take a core about as long as it takes to wake another.
constexpr int64_t kWorthAThread = 1 << 15;

template <typename Body>
void for_rows(int64_t rows, int64_t elements, int threads, const Body& body) {
  const int64_t worth = 1 + rows * elements / kWorthAThread;
  parallel_for(rows, static_cast<int>(std::min<int64_t>(threads, worth)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row) body(row);
               });
}

float sum_of_squares(const float* x, int64_t count) {
  constexpr int kLanes = 8;  // sums of their own, so that the compiler can use vectors
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (; i < count; ++i) lanes[i % kLanes] += x[i] * x[i];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

void normalise(const float* x, const float* weight, float* y, int64_t count, float eps,
               float offset) {
  const float factor = inverse_rms(sum_of_squares(x, count), count, eps);
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * factor * (weight[i] + offset);
}

float element(const float* table, int64_t i) { return table[i]; }
float element(const uint16_t* table, int64_t i) { return half_bits_to_float(table[i]); }

template <typename Element>
void embed(const Element* table, int64_t row, float* x, int64_t hidden, float scale) {
  for (int64_t i = 0; i < hidden; ++i) x[i] = element(table, row * hidden + i) * scale;
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_rms_norm_cpu(const float* x, float* residual, const float* weight, float* y, int64_t rows,
                       int64_t hidden, int residual_bytes, float eps, float offset, int threads) {
  if (rows < 1 || hidden < 1) return kBadShape;
  if (residual_bytes != 0 && residual_bytes != 4) return kBadFormat;
  for_rows(rows, hidden, threads, [&](int64_t row) {
    const float* of = x + row * hidden;
    if (residual_bytes) {
      float* sum = residual + row * hidden;
      for (int64_t i = 0; i < hidden; ++i) sum[i] += of[i];
      of = sum;
    }
    normalise(of, weight, y + row * hidden, hidden, eps, offset);
  });
  return kOk;
}

int volta_qk_norm_rope_cpu(float* qkv, const float* q_weight, const float* k_weight,
                           const float* cos_sin, const void* positions, int index_bytes,
                           int64_t tokens, int64_t stride, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, int64_t rotary_dim, int64_t max_positions,
                           int interleaved, float eps, float offset, int threads) {
  if (!fits_index(index_bytes)) return kBadFormat;
  if (!fits_heads(tokens, stride, heads, kv_heads, head_dim, rotary_dim)) return kBadShape;
  const int64_t rotated = heads + kv_heads, half = rotary_dim / 2;
  for_rows(tokens, rotated * head_dim, threads, [&](int64_t token) {
    const int64_t position = index_at(positions, index_bytes, token);
    const bool known = in_table(position, 0, max_positions);
    const float* cosines = cos_sin + (known ? position : 0) * rotary_dim;
    for (int64_t head = 0; head < rotated; ++head) {
      float* x = qkv + token * stride + head * head_dim;
      const float* weight = head < heads ? q_weight : k_weight;
      if (weight) normalise(x, weight, x, head_dim, eps, offset);
      for (int64_t i = 0; i < half; ++i) {
        float& a = x[interleaved ? 2 * i : i];
        float& b = x[interleaved ? 2 * i + 1 : i + half];
        if (known) {
          rotate(a, b, cosines[i], cosines[i + half]);
        } else {
          a = b = std::numeric_limits<float>::quiet_NaN();
        }
      }
    }
  });
  return kOk;
}

int volta_gated_activation_cpu(const float* gate_up, float* y, int64_t rows, int64_t n, int kind,
                               int interleaved, float limit, int threads) {
  if (rows < 1 || n < 1) return kBadShape;
  const float bound = limit > 0 ? limit : std::numeric_limits<float>::infinity();
  return with_activation(kind, kBadFormat, [&](auto activation) {
    for_rows(rows, 2 * n, threads, [&](int64_t row) {
      const float* x = gate_up + row * 2 * n;
      for (int64_t i = 0; i < n; ++i) {
        const float gate = x[interleaved ? 2 * i : i], up = x[interleaved ? 2 * i + 1 : n + i];
        y[row * n + i] = gated(activation, gate, up, bound);
      }
    });
    return static_cast<int>(kOk);
  });
}

int volta_embedding_cpu(const void* ids, const void* table, float* x, int64_t tokens, int64_t rows,
                        int64_t hidden, int64_t first_row, int index_bytes, int element_bytes,
                        float scale, int threads) {
  if (tokens < 1 || rows < 1 || hidden < 1) return kBadShape;
  if (!fits_index(index_bytes) || (element_bytes != 2 && element_bytes != 4)) return kBadFormat;
  for_rows(tokens, hidden, threads, [&](int64_t token) {
    const int64_t id = index_at(ids, index_bytes, token);
    float* out = x + token * hidden;
    if (!in_table(id, first_row, rows)) {
      std::fill_n(out, hidden, 0.0f);
    } else if (element_bytes == 4) {
      embed(static_cast<const float*>(table), id - first_row, out, hidden, scale);
    } else {
      embed(static_cast<const uint16_t*>(table), id - first_row, out, hidden, scale);
    }
  });
  return kOk;
}
