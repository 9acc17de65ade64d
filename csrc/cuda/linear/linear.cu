// Checks sizes and finds the format, whose kernels have an object file of their own.
#include "../../kernels.h"
#include "../../packing.h"
#include "launch.h"

namespace volta {

template <typename F>
int packed_linear(LinearArgs args, const LinearPlan& plan, cudaStream_t stream);

#define VOLTA_ELSEWHERE(number, name, F) \
  extern template int packed_linear<F>(LinearArgs, const LinearPlan&, cudaStream_t);
VOLTA_FORMATS(VOLTA_ELSEWHERE)

}  // namespace volta

using namespace volta;

int volta_packed_linear_cuda(int format, const void* x, const uint8_t* data, const float* row_scale,
                             const float* half_factor, const void* bias, const void* residual,
                             void* y, float* workspace, int* counters, const int* tile_expert,
                             const int* tile_row, const int* expert_offsets, const int* sorted,
                             int64_t m, int64_t n, int64_t k, int64_t tiles, int64_t tiles_z,
                             int top_k, int gated, int warp_tiles, int warps, int warps_k,
                             int split, cudaStream_t stream) {
  constexpr int64_t kMaxM = 32, kMaxGrid = 65535;
  if (m < 1 || m > kMaxM || n > kMaxSize || k > kMaxSize - 256 || tiles * 32 < n || tiles_z < 1 ||
      tiles_z > kMaxGrid || warp_tiles < 1 || warp_tiles > 2 || warps < 1 || warps_k < 1 ||
      split < 1 || split > kMaxGrid || (gated && tiles % 2 != 0))
    return kBadShape;
  LinearArgs args{};
  args.data = data;
  args.x = static_cast<const __half*>(x);
  args.half_factor = half_factor;
  args.epilogue = {row_scale,
                   static_cast<const __half*>(bias),
                   static_cast<const __half*>(residual),
                   static_cast<__half*>(y),
                   static_cast<int>(n),
                   static_cast<int>(tiles),
                   gated != 0};
  args.routing = {tile_expert, tile_row, expert_offsets, sorted, top_k, 0};
  args.workspace = workspace;
  args.counters = counters;
  args.m = static_cast<int>(m);
  args.k = static_cast<int>(k);
  const LinearPlan plan{warps, warps_k, split, static_cast<int>(tiles_z), warp_tiles};
  return with_format(format, n, k, [&](auto f) {
    using F = decltype(f);
    args.routing.data_stride = tiles * chunks_of<F>(k) * tile_bytes<F>();
    return packed_linear<F>(args, plan, stream);
  });
}
