// Reading packed tiles: what a lane, which has a row of each tile, loads of a tile and when.
#pragma once

#include "../../formats.h"

namespace volta {

// Where a tile's parts begin, in bytes, and how many 32-bit words of each a lane has.
template <typename F>
struct TileLayout {
  static constexpr int kSteps = F::kChunk / kStep;
  static constexpr int kBlockBytes = F::kVecs * kTileRows * 16;
  static constexpr int kStepBytes = kStep / kBlock * kBlockBytes;
  static constexpr int kHigh = kSteps * kStepBytes;
  static constexpr int kMeta = kHigh + F::kHighVecs * kTileRows * 16;
  static constexpr int kTail = kMeta + F::kMetaWords * kTileRows * 4;
  static constexpr int kBytes = tile_bytes<F>();
  // Of arrays, which may not be empty.
  static constexpr int kHighWords = F::kHighVecs > 0 ? F::kHighVecs * 4 / kSteps : 1;  // of a step
  static constexpr int kMetaWords = F::kMetaWords > 0 ? F::kMetaWords : 1;             // of a chunk
};

// Weights are read once: they pass the L1 cache by.
__device__ __forceinline__ uint4 load_once(const void* address) {
  uint4 value;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(address));
  return value;
}

// Where a lane's codes lie that are `ahead` blocks after the first of a step.
template <typename F>
struct Ahead {
  static constexpr unsigned kBlocks = F::kChunk / kBlock;
  unsigned chunks, block;
  __device__ __forceinline__ Ahead(int step, int ahead)
      : chunks((step * (kStep / kBlock) + ahead) / kBlocks),
        block((step * (kStep / kBlock) + ahead) % kBlocks) {}
};

// Has a tile on its way into the L2 cache, a line a lane.
template <typename F>
__device__ __forceinline__ void prefetch_tile(const uint8_t* tile, int lane) {
  constexpr int kLine = 128;
#pragma unroll
  for (int at = 0; at < TileLayout<F>::kBytes; at += kLine * kTileRows)
    if (at + lane * kLine < TileLayout<F>::kBytes)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(tile + at + lane * kLine));
}

template <int kWords>
__device__ __forceinline__ void load_words(const uint8_t* address, uint32_t* out);
template <>
__device__ __forceinline__ void load_words<1>(const uint8_t* address, uint32_t* out) {
  out[0] = __ldg(reinterpret_cast<const uint32_t*>(address));
}
template <>
__device__ __forceinline__ void load_words<2>(const uint8_t* address, uint32_t* out) {
  const uint2 v = __ldg(reinterpret_cast<const uint2*>(address));
  out[0] = v.x, out[1] = v.y;
}
template <>
__device__ __forceinline__ void load_words<4>(const uint8_t* address, uint32_t* out) {
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(address));
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

// A row's codes of a block.
template <typename F>
__device__ __forceinline__ void load_block(const uint8_t* block, int lane,
                                           uint4 (&codes)[F::kVecs]) {
#pragma unroll
  for (int v = 0; v < F::kVecs; ++v) codes[v] = load_once(block + (v * kTileRows + lane) * 16);
}

// A chunk's metadata.
template <typename F>
struct Meta {
  uint32_t words[TileLayout<F>::kMetaWords];
  uint32_t tail;

  __device__ __forceinline__ void load(const uint8_t* tile, int lane) {
    using L = TileLayout<F>;
    if (F::kMetaWords > 0)
      load_words<L::kMetaWords>(tile + L::kMeta + lane * F::kMetaWords * 4, words);
    if (F::kTail) tail = __ldg(reinterpret_cast<const unsigned short*>(tile + L::kTail) + lane);
  }
};

// A step's high bits.
template <typename F>
struct High {
  using L = TileLayout<F>;
  uint32_t words[L::kHighWords];

  __device__ __forceinline__ void load(const uint8_t* tile, int step, int lane) {
#pragma unroll
    for (int v = 0; v < F::kHighVecs / L::kSteps; ++v) {
      const int vec = step * (F::kHighVecs / L::kSteps) + v;
      const uint4 four = load_once(tile + L::kHigh + (vec * kTileRows + lane) * 16);
      words[4 * v] = four.x, words[4 * v + 1] = four.y;
      words[4 * v + 2] = four.z, words[4 * v + 3] = four.w;
    }
  }

  __device__ __forceinline__ const uint32_t* of(int block) const {
    return words + block * L::kHighWords * kBlock / kStep;
  }
};

}  // namespace volta
