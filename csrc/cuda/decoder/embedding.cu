// Rows of the embedding table, scaled.
#include "../../decoder_math.h"
#include "../../kernels.h"
#include "vector.cuh"

namespace volta {
namespace {

template <int kVec>
__global__ void embedding(const void* __restrict__ ids, const __half* __restrict__ table,
                          __half* __restrict__ x, unsigned parts, int64_t rows, int hidden,
                          int64_t first_row, int index_bytes, float scale) {
  const RowPlace at = row_place(parts);
  if (at.vector >= hidden / kVec) return;
  const int64_t id = index_at(ids, index_bytes, at.row);
  Vector<__half, kVec> vector = {};
  if (in_table(id, first_row, rows)) {
    load(table + (id - first_row) * hidden + at.vector * kVec, vector);
    float values[kVec];
    unpack(vector, values);
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] *= scale;
    pack(values, vector);
  }
  store(x + at.row * hidden + at.vector * kVec, vector);
}

}  // namespace
}  // namespace volta

int volta_embedding_cuda(const void* ids, const void* table, void* x, int64_t tokens, int64_t rows,
                         int64_t hidden, int64_t first_row, int index_bytes, int element_bytes,
                         float scale, cudaStream_t stream) {
  using namespace volta;
  if (!fits_index(index_bytes) || element_bytes != 2) return kBadFormat;
  if (tokens < 1 || rows < 1 || hidden < 1 || hidden > kMaxSize) return kBadShape;
  const bool wide = hidden % 8 == 0;
  const RowGrid grid(tokens, wide ? hidden / 8 : hidden);
  if (grid.blocks > kMaxSize) return kBadShape;
  const auto kernel = wide ? embedding<8> : embedding<1>;
  kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, 0, stream>>>(
      ids, static_cast<const __half*>(table), static_cast<__half*>(x), grid.parts, rows,
      static_cast<int>(hidden), first_row, index_bytes, scale);
  return cudaGetLastError();
}
