// The weighted sum of a token's expert outputs: bound by reading them once. A thread takes
// neighbouring columns of a token and has four rows in flight.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../../moe_math.h"
#include "../../moe_sizes.h"
#include "../decoder/vector.cuh"

namespace volta {
namespace {

constexpr int kThreads = 128;
constexpr int kAtOnce = 4;  // rows in flight

// Adds weight * row to the sums.
template <int kColumns>
__device__ __forceinline__ void add(float weight, const Vector<__half, kColumns>& row,
                                    float (&sum)[kColumns]) {
  float number[kColumns];
  unpack(row, number);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) sum[c] = fmaf(weight, number[c], sum[c]);
}

// kColumns: per thread, 8 where every row starts at a multiple of 16 bytes, else 1.
template <int kColumns>
__global__ void __launch_bounds__(kThreads)
    moe_combine(const Vector<__half, kColumns>* __restrict__ y, const float* __restrict__ weights,
                const int* __restrict__ ids, const Vector<__half, kColumns>* __restrict__ shared,
                Vector<__half, kColumns>* __restrict__ out, int top_k, int width, int first,
                int count) {
  const int column = blockIdx.y * kThreads + threadIdx.x;
  if (column >= width) return;
  const size_t token = blockIdx.x, at = token * width + column;
  weights += token * top_k;
  ids += token * top_k;
  y += token * top_k * width + column;

  float sum[kColumns] = {};
  for (int slot = 0; slot < top_k; slot += kAtOnce) {
    Vector<__half, kColumns> row[kAtOnce];
    float weight[kAtOnce];
    bool local[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      local[i] = slot + i < top_k && moe_local_expert(ids[slot + i], first, count) >= 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!local[i]) continue;
      weight[i] = weights[slot + i];
      row[i] = y[static_cast<size_t>(slot + i) * width];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (local[i]) add(weight[i], row[i], sum);
  }
  Vector<__half, kColumns> row;  // copied whole: one access
  if (shared) {
    row = shared[at];
    add(1.0f, row, sum);
  }
  pack(sum, row);
  out[at] = row;
}

template <int kColumns>
void launch(const void* y, const float* weights, const int* ids, const void* shared, void* out,
            int tokens, int top_k, int width, int first, int count, cudaStream_t stream) {
  using Row = Vector<__half, kColumns>;
  const int columns = width / kColumns;
  const dim3 grid(tokens, (columns + kThreads - 1) / kThreads);
  moe_combine<kColumns><<<grid, kThreads, 0, stream>>>(
      static_cast<const Row*>(y), weights, ids, static_cast<const Row*>(shared),
      static_cast<Row*>(out), top_k, columns, first, count);
}

}  // namespace
}  // namespace volta

int volta_moe_combine_cuda(const void* y, const float* weights, const int32_t* ids,
                           const void* shared, void* out, int64_t tokens, int64_t top_k,
                           int64_t width, int64_t first, int64_t count, cudaStream_t stream) {
  using namespace volta;
  if (!moe_combine_takes(tokens, top_k, width, first, count)) return kBadShape;
  const auto start = width % 8 == 0 ? launch<8> : launch<1>;
  start(y, weights, ids, shared, out, static_cast<int>(tokens), static_cast<int>(top_k),
        static_cast<int>(width), static_cast<int>(first), static_cast<int>(count), stream);
  return cudaGetLastError();
}
