// The kernels of one format, by the rows of x that they take at a time.
#pragma once

#include "../../kernels.h"
#include "gemv.cuh"
#include "skinny.cuh"

namespace volta {

template <typename F>
int packed_linear(LinearArgs args, const LinearPlan& plan, cudaStream_t stream) {
  args.chunks = (args.k + F::kChunk - 1) / F::kChunk;
  if (args.m <= 1 && plan.warp_tiles == 1) return launch_gemv<F, 1, 1>(args, plan, stream);
  if (args.m <= 1) return launch_gemv<F, 1, 2>(args, plan, stream);
  if (args.m <= 2 && plan.warp_tiles == 1) return launch_gemv<F, 2, 1>(args, plan, stream);
  if (args.m <= 2) return launch_gemv<F, 2, 2>(args, plan, stream);
  if (args.m <= 8) return launch_skinny<F, 1>(args, plan, stream);
  if (args.m <= 16) return launch_skinny<F, 2>(args, plan, stream);
  return launch_skinny<F, 4>(args, plan, stream);
}

}  // namespace volta
