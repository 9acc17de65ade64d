// RMSNorm over rows, after adding a residual where there is one. The threads of a row keep
// kHeld vectors of it each in registers; what is beyond them is read twice.
#include "../../decoder_math.h"
#include "../../kernels.h"
#include "vector.cuh"

namespace volta {
namespace {

constexpr int kHeld = 4;
constexpr int kMaxThreads = 512;    // a row, so that 128 registers each are to be had
constexpr int kBlockThreads = 128;  // rows of fewer share a block

// Of the blockDim.x threads of a row, in an order that depends on nothing else.
__device__ __forceinline__ float row_sum(float sum) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(~0u, sum, distance);
  if (blockDim.x == kWarp) return sum;
  __shared__ float warp_sums[kMaxThreads / kWarp];
  const int warps = blockDim.x / kWarp, first = threadIdx.y * warps;
  if (threadIdx.x % kWarp == 0) warp_sums[first + threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < warps; ++warp) sum += warp_sums[first + warp];
  return sum;
}

struct None {};

// A vector of s as it is stored: x and the residual, or x alone.
template <typename Residual, int kVec>
struct Sum {
  Vector<__half, kVec> x;
  Vector<Residual, kVec> residual;

  __device__ __forceinline__ void read(const __half* from, const Residual* more) {
    load(from, x);
    load(more, residual);
  }
  __device__ __forceinline__ void values(float (&sum)[kVec]) const {
    float more[kVec];
    unpack(x, sum);
    unpack(residual, more);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[i] += more[i];
  }
  static __device__ __forceinline__ void write(const float (&sum)[kVec], Residual* to) {
    Vector<Residual, kVec> packed;
    pack(sum, packed);
    store(to, packed);
  }
};

template <int kVec>
struct Sum<None, kVec> {
  Vector<__half, kVec> x;

  __device__ __forceinline__ void read(const __half* from, const None*) { load(from, x); }
  __device__ __forceinline__ void values(float (&sum)[kVec]) const { unpack(x, sum); }
  static __device__ __forceinline__ void write(const float (&)[kVec], None*) {}
};

template <typename Residual, int kVec>
__global__ void __launch_bounds__(kMaxThreads, 1)
    rms_norm(const __half* __restrict__ x, Residual* __restrict__ residual,
             const __half* __restrict__ weight, __half* __restrict__ y, int64_t rows, int hidden,
             float eps, float offset) {
  using Input = Sum<Residual, kVec>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int vectors = row < rows ? hidden / kVec : 0;
  x += row * hidden;
  residual += row * hidden;
  y += row * hidden;

  const auto squares = [](const Input& in) {
    float values[kVec], sum = 0;
    in.values(values);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum += values[i] * values[i];
    return sum;
  };

  Input held[kHeld] = {};  // zeros add nothing
  Vector<__half, kVec> weights[kHeld] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int vector = threadIdx.x + i * blockDim.x;
    if (vector < vectors) {
      held[i].read(x + vector * kVec, residual + vector * kVec);
      load(weight + vector * kVec, weights[i]);  // now, so as not to wait for them later
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) sum += squares(held[i]);
  const int rest = threadIdx.x + kHeld * blockDim.x;
  for (int vector = rest; vector < vectors; vector += blockDim.x) {
    Input in;
    in.read(x + vector * kVec, residual + vector * kVec);
    sum += squares(in);
  }
  const float factor = inverse_rms(row_sum(sum), hidden, eps);

  const auto write = [&](int vector, const Input& in, const Vector<__half, kVec>& of) {
    float values[kVec], scales[kVec];
    in.values(values);
    Input::write(values, residual + vector * kVec);
    unpack(of, scales);
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] *= factor * (scales[i] + offset);
    Vector<__half, kVec> result;
    pack(values, result);
    store(y + vector * kVec, result);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int vector = threadIdx.x + i * blockDim.x;
    if (vector < vectors) write(vector, held[i], weights[i]);
  }
  for (int vector = rest; vector < vectors; vector += blockDim.x) {
    Input in;
    Vector<__half, kVec> of;
    in.read(x + vector * kVec, residual + vector * kVec);
    load(weight + vector * kVec, of);
    write(vector, in, of);
  }
}

template <typename Residual>
int launch(const void* x, void* residual, const void* weight, void* y, int64_t rows, int64_t hidden,
           float eps, float offset, cudaStream_t stream) {
  const bool wide = hidden % 8 == 0;
  const int64_t vectors = wide ? hidden / 8 : hidden;
  const int64_t needed = (vectors + kHeld * kWarp - 1) / (kHeld * kWarp) * kWarp;
  const unsigned threads = static_cast<unsigned>(needed < kMaxThreads ? needed : kMaxThreads);
  const unsigned in_block = threads < kBlockThreads ? kBlockThreads / threads : 1;
  const int64_t blocks = (rows + in_block - 1) / in_block;
  if (blocks > kMaxSize) return kBadShape;
  const auto kernel = wide ? rms_norm<Residual, 8> : rms_norm<Residual, 1>;
  kernel<<<static_cast<unsigned>(blocks), dim3(threads, in_block), 0, stream>>>(
      static_cast<const __half*>(x), static_cast<Residual*>(residual),
      static_cast<const __half*>(weight), static_cast<__half*>(y), rows, static_cast<int>(hidden),
      eps, offset);
  return cudaGetLastError();
}

}  // namespace
}  // namespace volta

int volta_rms_norm_cuda(const void* x, void* residual, const void* weight, void* y, int64_t rows,
                        int64_t hidden, int residual_bytes, float eps, float offset,
                        cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || hidden < 1 || hidden > kMaxSize / 2) return kBadShape;
  switch (residual_bytes) {
    case 0:
      return launch<None>(x, nullptr, weight, y, rows, hidden, eps, offset, stream);
    case 2:
      return launch<__half>(x, residual, weight, y, rows, hidden, eps, offset, stream);
    case 4:
      return launch<float>(x, residual, weight, y, rows, hidden, eps, offset, stream);
    default:
      return kBadFormat;
  }
}
