// Codes and scales into tiles and back, once for each matrix of a model.
#include "packing.cuh"

namespace volta {
namespace {

template <typename F>
__global__ void __launch_bounds__(F::kChunk)
    pack(const uint8_t* codes, Arrays<const void> arrays, uint8_t* data, int64_t n, int64_t k) {
  pack_place(place_of_thread<F>(), codes, arrays, data, n, k);
}

template <typename F>
__global__ void __launch_bounds__(F::kChunk)
    unpack(const uint8_t* data, uint8_t* codes, Arrays<void> arrays, int64_t n, int64_t k) {
  unpack_place(place_of_thread<F>(), data, codes, arrays, n, k);
}

}  // namespace
}  // namespace volta

using namespace volta;

int volta_pack_cuda(int format, const uint8_t* codes, const void* scales_a, const void* scales_b,
                    const void* scales_c, const void* scales_d, uint8_t* data, int64_t n, int64_t k,
                    cudaStream_t stream) {
  const Arrays<const void> arrays{{scales_a, scales_b, scales_c, scales_d}};
  return with_format(format, n, k, [&](auto f) {
    using F = decltype(f);
    return launch_on_places<F>(pack<F>, n, k, stream, codes, arrays, data, n, k);
  });
}

int volta_unpack_cuda(int format, const uint8_t* data, uint8_t* codes, void* scales_a,
                      void* scales_b, void* scales_c, void* scales_d, int64_t n, int64_t k,
                      cudaStream_t stream) {
  const Arrays<void> arrays{{scales_a, scales_b, scales_c, scales_d}};
  return with_format(format, n, k, [&](auto f) {
    using F = decltype(f);
    return launch_on_places<F>(unpack<F>, n, k, stream, data, codes, arrays, n, k);
  });
}
