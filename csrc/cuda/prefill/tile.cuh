// The tiles of prefill attention, and keys and values on their way from the cache into them.
#pragma once

#include <cuda_fp16.h>

#include "../../kv_cache.h"
#include "../mma884.cuh"

namespace volta {
namespace prefill {

// A block takes kRows rows, a row being a query of one head of a group, against kKeys keys at a
// time. The sums of a warp's rows, [kRowTiles * 16][kDim] in FP32, are the bulk of its registers,
// and with two row tiles each load of keys and values serves two products.
template <typename StoredCode, int kHeadDim>
struct Tiling {
  using Code = StoredCode;
  static constexpr int kDim = kHeadDim;
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;  // of a warp
  static constexpr int kWarps = kDim <= 192 ? 4 : 8;
  static constexpr int kKeys = 32;
  static constexpr int kBlocksPerSm = kDim <= 64 ? 3 : kDim <= 192 ? 2 : 1;

  static constexpr int kThreads = kWarps * 32;
  static constexpr int kWarpRows = kRowTiles * kMmaTile;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeyTiles = kKeys / kMmaTile;
  static constexpr int kChunks = kDim / kMmaChunk;
  static constexpr int kSharedBytes = (kRows + 2 * kKeys) * kDim * 2;  // queries, keys, values
  static_assert(kSharedBytes * kBlocksPerSm <= 96 * 1024, "a V100's SM has 96 KB");

  // kTileWarps warps load 16 tokens of a tile: half a warp has a lane for each token, and the
  // halves take the 16-byte loads of the tokens' rows in turn.
  static constexpr int kTileWarps = kWarps / kKeyTiles;
  static constexpr int kCodesPerLoad = 16 / sizeof(Code);
  static constexpr int kRowLoads = kDim / kCodesPerLoad;
  static constexpr int kLoads = (kRowLoads + 2 * kTileWarps - 1) / (2 * kTileWarps);  // of a lane
};

// What kv_pair_to_half_bits gives, without its bias.
template <typename Code>
__device__ __forceinline__ uint32_t exact_halves(Code, uint32_t pair) {
  return pair;
}
__device__ __forceinline__ uint32_t exact_halves(KvInt8, uint32_t pair) {
  const __half2 biased = *reinterpret_cast<const __half2*>(&pair);
  const __half2 value = __hsub2(biased, __float2half2_rn(kKvInt8Bias));
  return *reinterpret_cast<const uint32_t*>(&value);
}

// A lane's share of a tile of keys or values: fetched early, as codes, and placed later, as FP16.
template <typename T>
class Share {
 public:
  // row: of the cache seen as rows of kDim codes; negative for zeros.
  __device__ __forceinline__ void fetch(const void* cache, int row, int lane, int warp) {
    const uint4* from =
        static_cast<const uint4*>(cache) + int64_t{row} * T::kRowLoads + first_load(lane, warp);
#pragma unroll
    for (int i = 0; i < T::kLoads; ++i)
      codes_[i] = row >= 0 && takes_part(i, lane, warp) ? __ldg(from + i * kStride)
                                                        : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void place(uint4* tile, int lane, int warp) const {
    constexpr int kPairs = kKvPairsPerWord<typename T::Code>;  // also chunks of a load
    uint4* to = tile + first_load(lane, warp) * kPairs * T::kKeys + token(lane, warp);
#pragma unroll
    for (int i = 0; i < T::kLoads; ++i) {
      if (!takes_part(i, lane, warp)) continue;
      const uint32_t words[4] = {codes_[i].x, codes_[i].y, codes_[i].z, codes_[i].w};
#pragma unroll
      for (int chunk = 0; chunk < kPairs; ++chunk) {
        uint32_t pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const typename T::Code code{};
          const uint32_t word = words[(4 * chunk + j) / kPairs];
          pairs[j] = exact_halves(code, kv_pair_to_half_bits(code, word, j % kPairs));
        }
        to[(i * kStride * kPairs + chunk) * T::kKeys] =
            make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }

  // Which token of a tile the lane loads.
  __device__ static __forceinline__ int token(int lane, int warp) {
    return warp % T::kKeyTiles * kMmaTile + lane % kMmaTile;
  }

 private:
  static constexpr int kStride = 2 * T::kTileWarps;

  __device__ static __forceinline__ int first_load(int lane, int warp) {
    return warp / T::kKeyTiles * 2 + lane / kMmaTile;
  }

  // Whether a row has the lane's i-th load: rows may end in the middle of a turn.
  __device__ static __forceinline__ bool takes_part(int i, int lane, int warp) {
    return T::kRowLoads % kStride == 0 || i * kStride + first_load(lane, warp) < T::kRowLoads;
  }

  uint4 codes_[T::kLoads];
};

}  // namespace prefill
}  // namespace volta
