// Which kernel a cache and a head dimension take, and its launch.
#include <algorithm>

#include "kernel.cuh"

namespace volta {
namespace prefill {
namespace {

template <typename T>
int launch(const Arguments& p, int64_t sequences, int64_t max_query, cudaStream_t stream) {
  const auto kernel = paged_prefill<T>;
  // More than 48 KB must be asked for, and the SM's memory divided so that its blocks fit.
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  const int64_t row_blocks = (max_query * p.group + T::kRows - 1) / T::kRows;
  const dim3 grid(static_cast<unsigned>(row_blocks), p.kv_heads, static_cast<unsigned>(sequences));
  kernel<<<grid, T::kThreads, T::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace
}  // namespace prefill
}  // namespace volta

int volta_paged_prefill_cuda(const void* q, const void* k_cache, const void* v_cache,
                             const int32_t* block_table, const int32_t* query_offsets,
                             const int32_t* lengths, const float* sinks, const float* k_scale,
                             const float* v_scale, void* out, int64_t sequences, int64_t max_query,
                             int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size,
                             int64_t max_blocks, int64_t window, float scale, float soft_cap,
                             int kv_type, cudaStream_t stream) {
  using namespace volta;
  using namespace volta::prefill;
  constexpr int64_t kMaxGrid = 65535;  // in y and z
  if (sequences < 1 || sequences > kMaxGrid || kv_heads < 1 || kv_heads > kMaxGrid || heads < 1 ||
      heads % kv_heads != 0 || heads > kMaxSize || max_query < 1 ||
      max_query > kMaxSize / 2 / (heads / kv_heads) || block_size < 1 ||
      block_size % kKvBlockMultiple != 0 || max_blocks < 1 || block_size > kMaxSize / 2 ||
      max_blocks > kMaxSize / 2 / block_size || window < 0)
    return kBadShape;

  Arguments p;
  p.q = static_cast<const __half*>(q);
  p.k_cache = k_cache;
  p.v_cache = v_cache;
  p.block_table = block_table;
  p.query_offsets = query_offsets;
  p.lengths = lengths;
  p.sinks = sinks;
  p.k_scale = k_scale;
  p.v_scale = v_scale;
  p.out = static_cast<__half*>(out);
  p.kv_heads = static_cast<int>(kv_heads);
  p.group = static_cast<int>(heads / kv_heads);
  p.block_size = static_cast<int>(block_size);
  p.max_blocks = static_cast<int>(max_blocks);
  p.window = window == 0 ? kNoWindow : static_cast<int>(std::min<int64_t>(window, kNoWindow));
  p.scale = soft_cap > 0 ? scale * 2 * kLog2E / soft_cap : scale * kLog2E;
  p.soft_cap = soft_cap > 0 ? soft_cap * kLog2E : 0;

  return with_kv_type(kv_type, kBadFormat, [&](auto code) -> int {
    using Code = decltype(code);
    switch (head_dim) {
      case 64:
        return launch<Tiling<Code, 64>>(p, sequences, max_query, stream);
      case 96:
        return launch<Tiling<Code, 96>>(p, sequences, max_query, stream);
      case 128:
        return launch<Tiling<Code, 128>>(p, sequences, max_query, stream);
      case 192:
        return launch<Tiling<Code, 192>>(p, sequences, max_query, stream);
      case 256:
        return launch<Tiling<Code, 256>>(p, sequences, max_query, stream);
      default:
        return kBadShape;
    }
  });
}
