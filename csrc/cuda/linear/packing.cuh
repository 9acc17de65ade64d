// How the kernels over whole packed matrices are launched: a block takes a tile's chunk, a thread a
// row of it in 32 columns. So a warp reads and writes 512 bytes of a tile at once.
#pragma once

#include <cuda_runtime.h>

#include "../../packing.h"

namespace volta {

constexpr int64_t kMaxGridY = 65535;

template <typename F>
__device__ __forceinline__ Place<F> place_of_thread() {
  return {blockIdx.x, blockIdx.y, static_cast<int>(threadIdx.x % kTileRows),
          static_cast<int>(threadIdx.x / kTileRows)};
}

template <typename F, typename... Parameters, typename... Arguments>
int launch_on_places(void (*kernel)(Parameters...), int64_t n, int64_t k, cudaStream_t stream,
                     Arguments... arguments) {
  if (chunks_of<F>(k) > kMaxGridY) return kBadShape;
  const dim3 grid(static_cast<unsigned>(tiles_of(n)), static_cast<unsigned>(chunks_of<F>(k)));
  kernel<<<grid, F::kChunk, 0, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace volta
