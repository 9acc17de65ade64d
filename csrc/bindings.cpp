// The only file that knows Python: integers (pointers) in, exceptions out. A launcher is one row in
// the module at the end, whatever its arguments.
#include <pybind11/pybind11.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels.h"
#include "packing.h"

namespace py = pybind11;

namespace {

// Pointers and streams cross as integers.
template <typename T>
struct Argument {
  using Type = T;
  static T native(T value) { return value; }
};

template <typename T>
struct Argument<T*> {
  using Type = uintptr_t;
  static T* native(uintptr_t address) { return reinterpret_cast<T*>(address); }
};

// "name(0x7f.., 9, 4096)": callers see no more than that, so all arguments go in.
template <typename... Args>
std::string describe(const char* name, Args... args) {
  std::ostringstream text;
  const char* separator = "";
  text << name << '(';
  const auto add = [&](auto value) {
    text << separator;
    if constexpr (std::is_pointer_v<decltype(value)>) {
      text << "0x" << std::hex << reinterpret_cast<uintptr_t>(value) << std::dec;
    } else {
      text << value;
    }
    separator = ", ";
  };
  (add(args), ...);
  text << ')';
  return text.str();
}

const char* reason(int status) {
  switch (status) {
    case volta::kBadShape:
      return "the kernel does not take these sizes";
    case volta::kBadIsa:
      return "this CPU or this build lacks the instruction set";
    case volta::kBadFormat:
      return "there is no such weight format or kernel variant";
    default:
      return "unknown status";
  }
}

template <typename... Args>
void bind(py::module_& m, const char* name, int (*launcher)(Args...)) {
  // CPU kernels run for milliseconds: other Python threads go on meanwhile.
  m.def(
      name,
      [name, launcher](typename Argument<Args>::Type... args) {
        const int status = launcher(Argument<Args>::native(args)...);
        if (status == volta::kOk) return;
        const std::string call = describe(name, Argument<Args>::native(args)...);
        if (status < 0) throw std::invalid_argument(call + ": " + reason(status));
#ifdef VOLTA_CUDA
        throw std::runtime_error(call + ": CUDA error " + std::to_string(status) + ", " +
                                 volta_cuda_error(status));
#endif
      },
      py::call_guard<py::gil_scoped_release>());
}

// (number, name, columns of a chunk, bytes of a tile, what k is a multiple of, ((bytes, columns) of
// an element of scales, ...)) of a weight format.
template <typename F>
py::tuple format_row(int number, const char* name) {
  constexpr volta::Source source = volta::source(F{});
  py::list arrays;
  for (int i = 0; i < source.arrays; ++i)
    arrays.append(py::make_tuple(source.array[i].bytes, source.array[i].columns));
  return py::make_tuple(number, name, F::kChunk + 0, volta::tile_bytes<F>(), source.multiple,
                        py::tuple(arrays));
}

py::tuple formats() {
  using namespace volta;
  py::list rows;
#define ADD(number, name, F) rows.append(format_row<F>(number, #name));
  VOLTA_FORMATS(ADD)
#undef ADD
  return py::tuple(rows);
}

}  // namespace

#define BIND(name) bind(m, #name, volta_##name)

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Volta's kernels over raw pointers; volta_runtime.ops checks and calls them.";
  m.attr("compiler") = __VERSION__;
  m.attr("cpu_isa") = volta_cpu_isa();
  BIND(nvfp4_linear_cpu);
  BIND(half_linear_cpu);
  m.attr("formats") = formats();
  BIND(pack_cpu);
  BIND(unpack_cpu);
  BIND(half_factor_cpu);
  BIND(dequantize_cpu);
  BIND(linear_cpu);
  BIND(rms_norm_cpu);
  BIND(qk_norm_rope_cpu);
  BIND(gated_activation_cpu);
  BIND(embedding_cpu);
  BIND(paged_prefill_cpu);
  BIND(apply_penalties_cpu);
  BIND(count_tokens_cpu);
  BIND(apply_bias_cpu);
  BIND(apply_mask_cpu);
  BIND(sample_cpu);
  BIND(top_logprobs_cpu);
  BIND(token_logprobs_cpu);
  BIND(kv_cache_write_cpu);
  BIND(kv_cache_copy_cpu);
  BIND(kv_cache_swap_cpu);
  BIND(paged_decode_cpu);
  BIND(moe_route_cpu);
  BIND(moe_permute_cpu);
  BIND(moe_combine_cpu);
#ifdef VOLTA_CUDA
  m.attr("cuda_archs") = py::tuple(py::str(volta_cuda_archs()).attr("split")());
  BIND(packed_linear_cuda);
  BIND(pack_cuda);
  BIND(unpack_cuda);
  BIND(half_factor_cuda);
  BIND(dequantize_cuda);
  BIND(rms_norm_cuda);
  BIND(qk_norm_rope_cuda);
  BIND(gated_activation_cuda);
  BIND(embedding_cuda);
  BIND(paged_prefill_cuda);
  BIND(apply_penalties_cuda);
  BIND(count_tokens_cuda);
  BIND(apply_bias_cuda);
  BIND(apply_mask_cuda);
  BIND(sample_cuda);
  BIND(top_logprobs_cuda);
  BIND(token_logprobs_cuda);
  BIND(kv_cache_write_cuda);
  BIND(kv_cache_copy_cuda);
  BIND(kv_cache_swap_cuda);
  BIND(paged_decode_cuda);
  BIND(moe_route_cuda);
  BIND(moe_permute_cuda);
  BIND(moe_combine_cuda);
#else
  m.attr("cuda_archs") = py::tuple();
#endif
}
