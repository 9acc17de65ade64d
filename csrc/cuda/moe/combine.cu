// The weighted sum of a token's expert outputs: bound by reading them once. A thread takes
// neighbouring columns of a token; a lane of each warp looks at one of the token's slots.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../../moe_math.h"
#include "../../moe_sizes.h"
#include "../decoder/vector.cuh"
#include "warp.cuh"

namespace volta {
namespace {

constexpr int kThreads = 128;
constexpr int kAtOnce = 8;  // rows in flight: the usual top_k

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
  const int column = blockIdx.y * kThreads + threadIdx.x, lane = threadIdx.x % kWarp;
  const int readable = min(column, width - 1);  // all lanes stay, for they know of slots
  const size_t token = blockIdx.x;
  float weight = 0;
  bool local = false;
  if (lane < top_k) {
    weight = weights[token * top_k + lane];
    local = moe_local_expert(ids[token * top_k + lane], first, count) >= 0;
  }
  y += token * top_k * width + readable;
  Vector<__half, kColumns> last;  // the shared expert's, and then the result
  if (shared) last = shared[token * width + readable];

  float sum[kColumns] = {};
  for (unsigned slots = __ballot_sync(kAllLanes, local); slots;) {
    Vector<__half, kColumns> row[kAtOnce];
    float factor[kAtOnce];
    bool used[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = __ffs(slots) - 1;
      used[i] = slots != 0;
      factor[i] = __shfl_sync(kAllLanes, weight, slot);
      if (used[i]) row[i] = y[static_cast<size_t>(slot) * width];
      slots &= slots - 1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (used[i]) add(factor[i], row[i], sum);
  }
  if (column >= width) return;
  if (shared) add(1.0f, last, sum);
  pack(sum, last);
  out[token * width + column] = last;
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
