// Decode attention over the paged KV cache: the splits, then their joining.
#include "../../attention.h"
#include "decode_split.cuh"

namespace volta {

namespace {

constexpr int kParts = 8;  // threads that share the splits of four dimensions
constexpr int kMaxDim = 256;

// Grid: heads, sequences; block: head_dim / 4, kParts.
__global__ void __launch_bounds__(kMaxDim / 4 * kParts) decode_join(const DecodeArguments a) {
  const int head = blockIdx.x, sequence = blockIdx.y;
  const int column = threadIdx.x, columns = blockDim.x, part = threadIdx.y;
  const int64_t index = static_cast<int64_t>(sequence) * a.heads + head;
  const int splits = visible_tokens(a, sequence).splits;
  const float4* const partials =
      reinterpret_cast<const float4*>(a.partials) + index * a.splits * (columns + 1);

  PartialSums sums;
#pragma unroll 4
  for (int i = part; i < splits; i += kParts) {
    const float4* const split = partials + static_cast<int64_t>(i) * (columns + 1);
    const float4 last = split[columns];
    sums.add(split[column], last.x, last.y);
  }

  __shared__ float4 shared_out[kParts][kMaxDim / 4];
  __shared__ float shared_max[kParts], shared_weight[kParts];
  shared_out[part][column] = sums.out;
  if (column == 0) {
    shared_max[part] = sums.max;
    shared_weight[part] = sums.weight;
  }
  __syncthreads();
  if (part != 0) return;
#pragma unroll
  for (int p = 1; p < kParts; ++p) sums.add(shared_out[p][column], shared_max[p], shared_weight[p]);
  const bool none = sums.max == -INFINITY;
  if (a.sinks) sums.add(float4{0, 0, 0, 0}, a.sinks[head] * kLog2E, exp2f(kProbabilityBits));

  const float v_scale = a.v_scale ? a.v_scale[head / (a.heads / a.kv_heads)] : 1.0f;
  const float scale = none ? 0.0f : v_scale / sums.weight;
  reinterpret_cast<uint2*>(a.out)[index * columns + column] =
      make_uint2(half2_bits(sums.out.x * scale, sums.out.y * scale),
                 half2_bits(sums.out.z * scale, sums.out.w * scale));
}

template <typename Code, int kDim>
int launch_decode_split(const DecodeArguments& a, cudaStream_t stream) {
  constexpr int kMostTiles = kDim <= 128 ? 2 : 1;  // as far as registers go
  const int group = a.heads / a.kv_heads;
  const int tiles = group > kTileRows ? kMostTiles : 1;
  const int rows = tiles * kTileRows;
  const int64_t y = static_cast<int64_t>(a.kv_heads) * ((group + rows - 1) / rows);
  if (y > 65535) return kBadShape;
  const dim3 grid(a.splits, static_cast<unsigned>(y), a.sequences);
  (tiles == 1 ? decode_split<Code, kDim, 1>
              : decode_split<Code, kDim, kMostTiles>)<<<grid, 32 * kDecodeWarps, 0, stream>>>(a);
  return cudaGetLastError();
}

int launch_splits(int kv_type, int64_t head_dim, const DecodeArguments& a, cudaStream_t stream) {
  return with_kv_type(kv_type, kBadFormat, [&](auto code) -> int {
    using Code = decltype(code);
    switch (head_dim) {
      case 64:
        return launch_decode_split<Code, 64>(a, stream);
      case 96:
        return launch_decode_split<Code, 96>(a, stream);
      case 128:
        return launch_decode_split<Code, 128>(a, stream);
      case 192:
        return launch_decode_split<Code, 192>(a, stream);
      case 256:
        return launch_decode_split<Code, 256>(a, stream);
      default:
        return kBadShape;
    }
  });
}

}  // namespace
}  // namespace volta

int volta_paged_decode_cuda(const void* q, const void* k_cache, const void* v_cache,
                            const int32_t* block_table, const int32_t* lengths, const float* sinks,
                            const float* k_scale, const float* v_scale, void* out, float* partials,
                            int64_t sequences, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            int64_t block_size, int64_t max_blocks, int64_t window, float scale,
                            float soft_cap, int64_t fill, int64_t splits, int kv_type,
                            cudaStream_t stream) {
  using namespace volta;
  // Tokens are counted in int, with room for the last step; grid dimensions but the first end at
  // 65535.
  if (sequences < 0 || sequences > 65535 || kv_heads < 1 || heads < kv_heads || heads > kMaxSize ||
      heads % kv_heads != 0 || block_size < kKvBlockMultiple ||
      block_size % kKvBlockMultiple != 0 || max_blocks < 0 ||
      max_blocks > (kMaxSize - kKvBlockMultiple) / block_size || window < 0 || fill < 1 ||
      splits < 1 || splits > kMaxSize)
    return kBadShape;
  if (sequences == 0) return kOk;
  DecodeArguments a;
  a.q = static_cast<const __half*>(q);
  a.k_cache = k_cache;
  a.v_cache = v_cache;
  a.block_table = block_table;
  a.lengths = lengths;
  a.sinks = sinks;
  a.k_scale = k_scale;
  a.v_scale = v_scale;
  a.out = static_cast<__half*>(out);
  a.partials = partials;
  a.sequences = static_cast<int>(sequences);
  a.heads = static_cast<int>(heads);
  a.kv_heads = static_cast<int>(kv_heads);
  a.block_size = static_cast<int>(block_size);
  a.max_blocks = static_cast<int>(max_blocks);
  a.window = static_cast<int>(window < kMaxSize ? window : kMaxSize);
  a.scale = scale;
  a.soft_cap = soft_cap;
  a.fill = static_cast<int>(fill < splits ? fill : splits);
  a.splits = static_cast<int>(splits);
  const int status = launch_splits(kv_type, head_dim, a, stream);
  if (status != kOk) return status;
  decode_join<<<dim3(static_cast<unsigned>(heads), static_cast<unsigned>(sequences)),
                dim3(static_cast<unsigned>(head_dim / 4), kParts), 0, stream>>>(a);
  return cudaGetLastError();
}
