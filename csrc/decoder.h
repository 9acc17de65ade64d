// The small operations of a decoder step. Activations are FP32 on the CPU and FP16 on CUDA, where
// finite results beyond FP16's range become its ends; all arithmetic is FP32.
//
// Index arrays (positions, ids) hold int32 or int64, as index_bytes says: 4 or 8. They are read on
// the device, and none makes a kernel read outside a table.
#pragma once

#include <cstdint>

extern "C" {

// y[r] = s * (weight + offset) / sqrt(mean(s^2) + eps) over rows of `hidden`, where s = x[r], or
// x[r] + residual[r] where there is a residual. s replaces the residual, rounded to its type, of
// residual_bytes an element (0: no residual; CUDA takes 2 and 4). The norm is of the unrounded s.
int volta_rms_norm_cpu(const float* x, float* residual, const float* weight, float* y, int64_t rows,
                       int64_t hidden, int residual_bytes, float eps, float offset, int threads);
int volta_rms_norm_cuda(const void* x, void* residual, const void* weight, void* y, int64_t rows,
                        int64_t hidden, int residual_bytes, float eps, float offset,
                        cudaStream_t stream);

// In place on the first heads + kv_heads heads of each row of qkv, rows `stride` elements apart:
// RMSNorm of a head where its weight is not null (q_weight: the first `heads`), then rotation of
// its first rotary_dim elements in pairs, (i, i + rotary_dim / 2) or interleaved (2i, 2i + 1), by
// row positions[token] of cos_sin [max_positions][rotary_dim], cosines in the first half and sines
// in the second. A position outside the table makes the rotated elements NaN.
// head_dim and rotary_dim are even, at most 512.
int volta_qk_norm_rope_cpu(float* qkv, const float* q_weight, const float* k_weight,
                           const float* cos_sin, const void* positions, int index_bytes,
                           int64_t tokens, int64_t stride, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, int64_t rotary_dim, int64_t max_positions,
                           int interleaved, float eps, float offset, int threads);
int volta_qk_norm_rope_cuda(void* qkv, const void* q_weight, const void* k_weight,
                            const float* cos_sin, const void* positions, int index_bytes,
                            int64_t tokens, int64_t stride, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t rotary_dim, int64_t max_positions,
                            int interleaved, float eps, float offset, cudaStream_t stream);

// y[r][i] = act(gate) * up for gate_up[r] of 2n elements: gates, then ups, or, interleaved, each
// gate before its up. `kind` is one of decoder_math.h's; a limit above 0 clamps gate from above and
// up on both sides first.
int volta_gated_activation_cpu(const float* gate_up, float* y, int64_t rows, int64_t n, int kind,
                               int interleaved, float limit, int threads);
int volta_gated_activation_cuda(const void* gate_up, void* y, int64_t rows, int64_t n, int kind,
                                int interleaved, float limit, cudaStream_t stream);

// x[t] = table[ids[t] - first_row] * scale, and zeros for ids outside the table's `rows` rows.
// Its elements are FP16, or FP32 on the CPU: element_bytes, 2 or 4.
int volta_embedding_cpu(const void* ids, const void* table, float* x, int64_t tokens, int64_t rows,
                        int64_t hidden, int64_t first_row, int index_bytes, int element_bytes,
                        float scale, int threads);
int volta_embedding_cuda(const void* ids, const void* table, void* x, int64_t tokens, int64_t rows,
                         int64_t hidden, int64_t first_row, int index_bytes, int element_bytes,
                         float scale, cudaStream_t stream);

}  // extern "C"
