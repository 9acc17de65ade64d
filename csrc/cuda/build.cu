// What the CUDA part of the library says of itself.
#include <cuda_runtime.h>

#include "../kernels.h"

const char* volta_cuda_archs() { return VOLTA_CUDA_ARCHS; }

const char* volta_cuda_error(int status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}
