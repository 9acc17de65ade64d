// act(gate) * up: 8 gates and 8 ups a thread, two loads and one store of 16 bytes.
#include "../../decoder_math.h"
#include "../../kernels.h"
#include "vector.cuh"

namespace volta {
namespace {

template <typename Kind, int kVec, bool kInterleaved>
__global__ void gated_activation(const __half* __restrict__ gate_up, __half* __restrict__ y,
                                 unsigned parts, int n, float limit) {
  const RowPlace at = row_place(parts);
  if (at.vector >= n / kVec) return;
  const int64_t out = at.row * n + at.vector * kVec;
  // The two vectors lie side by side where gates and ups alternate, else n apart.
  const int64_t first = kInterleaved ? 2 * out : out + at.row * n;
  Vector<__half, kVec> in[2];
  load(gate_up + first, in[0]);
  load(gate_up + first + (kInterleaved ? kVec : n), in[1]);
  float values[2 * kVec], results[kVec];
  unpack(in[0], values);
  unpack(in[1], values + kVec);
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    results[i] = gated(Kind{}, values[kInterleaved ? 2 * i : i],
                       values[kInterleaved ? 2 * i + 1 : kVec + i], limit);
  Vector<__half, kVec> result;
  pack(results, result);
  store(y + out, result);
}

}  // namespace
}  // namespace volta

int volta_gated_activation_cuda(const void* gate_up, void* y, int64_t rows, int64_t n, int kind,
                                int interleaved, float limit, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || n < 1 || n > kMaxSize) return kBadShape;
  const bool wide = n % 8 == 0;
  const RowGrid grid(rows, wide ? n / 8 : n);
  if (grid.blocks > kMaxSize) return kBadShape;
  return with_activation(kind, kBadFormat, [&](auto activation) {
    using Kind = decltype(activation);
    const auto kernel =
        wide ? (interleaved ? gated_activation<Kind, 8, true> : gated_activation<Kind, 8, false>)
             : (interleaved ? gated_activation<Kind, 1, true> : gated_activation<Kind, 1, false>);
    kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
        static_cast<const __half*>(gate_up), static_cast<__half*>(y), grid.parts,
        static_cast<int>(n), limit > 0 ? limit : INFINITY);
    return static_cast<int>(cudaGetLastError());
  });
}
