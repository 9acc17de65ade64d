// The only file that knows Python: integers (pointers) in, exceptions out.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "kernels.h"

namespace py = pybind11;

namespace {

template <typename T>
T* ptr(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Raises for a failed status; sizes go into the message, for callers see no more than that.
void check(int status, const char* kernel, int64_t m, int64_t n, int64_t k) {
  if (status == volta::kOk) return;
  const std::string where = std::string(kernel) + " (m=" + std::to_string(m) +
                            ", n=" + std::to_string(n) + ", k=" + std::to_string(k) + ")";
  if (status == volta::kBadShape)
    throw std::invalid_argument(where +
                                ": needs m > 0 (up to 8 on CUDA), n > 0 and k a multiple of 16");
  if (status == volta::kBadIsa)
    throw std::invalid_argument(where + ": this CPU or this build lacks the instruction set");
#ifdef VOLTA_CUDA
  throw std::runtime_error(where + ": CUDA error " + std::to_string(status) + ", " +
                           volta_cuda_error(status));
#endif
}

void nvfp4_linear_cpu(uintptr_t x, uintptr_t codes, uintptr_t scales, uintptr_t row_scale,
                      uintptr_t y, int64_t m, int64_t n, int64_t k, int threads, int isa) {
  check(volta_nvfp4_linear_cpu(ptr<const float>(x), ptr<const uint8_t>(codes),
                               ptr<const uint8_t>(scales), ptr<const float>(row_scale),
                               ptr<float>(y), m, n, k, threads, isa),
        "nvfp4_linear_cpu", m, n, k);
}

void nvfp4_dequantize_cpu(uintptr_t codes, uintptr_t scales, uintptr_t row_scale, uintptr_t w,
                          int64_t n, int64_t k, int threads) {
  check(volta_nvfp4_dequantize_cpu(ptr<const uint8_t>(codes), ptr<const uint8_t>(scales),
                                   ptr<const float>(row_scale), ptr<float>(w), n, k, threads),
        "nvfp4_dequantize_cpu", 1, n, k);
}

void half_linear_cpu(uintptr_t x, uintptr_t w, uintptr_t y, int64_t m, int64_t n, int64_t k,
                     int threads, int isa) {
  check(volta_half_linear_cpu(ptr<const float>(x), ptr<const uint16_t>(w), ptr<float>(y), m, n, k,
                              threads, isa),
        "half_linear_cpu", m, n, k);
}

#ifdef VOLTA_CUDA
void nvfp4_gemv_cuda(uintptr_t x, uintptr_t codes, uintptr_t scales, uintptr_t row_scale,
                     uintptr_t y, int64_t m, int64_t n, int64_t k, uintptr_t stream) {
  check(volta_nvfp4_gemv_cuda(ptr<const void>(x), ptr<const uint8_t>(codes),
                              ptr<const uint8_t>(scales), ptr<const float>(row_scale), ptr<void>(y),
                              m, n, k, reinterpret_cast<cudaStream_t>(stream)),
        "nvfp4_gemv_cuda", m, n, k);
}

void nvfp4_dequantize_cuda(uintptr_t codes, uintptr_t scales, uintptr_t row_scale, uintptr_t w,
                           int64_t n, int64_t k, uintptr_t stream) {
  check(volta_nvfp4_dequantize_cuda(ptr<const uint8_t>(codes), ptr<const uint8_t>(scales),
                                    ptr<const float>(row_scale), ptr<void>(w), n, k,
                                    reinterpret_cast<cudaStream_t>(stream)),
        "nvfp4_dequantize_cuda", 1, n, k);
}
#endif

}  // namespace

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Volta's kernels over raw pointers; volta_runtime.ops checks and calls them.";
  m.attr("compiler") = __VERSION__;
  m.attr("cpu_isa") = volta_cpu_isa();
  // CPU kernels run for milliseconds: other Python threads go on meanwhile.
  const py::call_guard<py::gil_scoped_release> unlocked;
  m.def("nvfp4_linear_cpu", nvfp4_linear_cpu, unlocked);
  m.def("nvfp4_dequantize_cpu", nvfp4_dequantize_cpu, unlocked);
  m.def("half_linear_cpu", half_linear_cpu, unlocked);
#ifdef VOLTA_CUDA
  m.attr("cuda_archs") = py::make_tuple("sm_70", "compute_70");
  m.def("nvfp4_gemv_cuda", nvfp4_gemv_cuda);
  m.def("nvfp4_dequantize_cuda", nvfp4_dequantize_cuda);
#else
  m.attr("cuda_archs") = py::tuple();
#endif
}
