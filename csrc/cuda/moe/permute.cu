// A stable counting sort of assignments by expert, the same from run to run: no atomic operation
// decides on a place. One launch for a chunk of assignments, else three: each chunk is counted,
// the counts become places, and each chunk is placed.
#include <cuda_runtime.h>

#include "../../moe_math.h"
#include "../../moe_sizes.h"
#include "warp.cuh"

namespace volta {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPerLane = kMoeChunk / kThreads;
constexpr int kAtOnce = 8;  // chunks whose counts are in flight

static_assert(kMoeMaxExperts <= kThreads, "a thread each");

struct Sizes {
  int assignments, first, count, tile, tiles;
};

// A thread's assignments: begin, begin + kWarp, ... The rank is that among those of the same expert
// in the same warp.
struct Assigned {
  int begin;
  int expert[kPerLane], rank[kPerLane];
};

// Of each expert, the assignments of the warps before.
using Before = uint16_t[kWarps][kMoeMaxExperts];

// Where each expert's rows and tiles begin; the last ones are the sums.
struct Plan {
  int row[kMoeMaxExperts + 1], tile[kMoeMaxExperts + 1];
};

// Ranks the block's chunk and returns how many of it expert threadIdx.x has. A warp goes through
// neighbouring assignments in ascending order, with counters of its own.
__device__ __forceinline__ int rank_chunk(const int* __restrict__ ids, const Sizes& size,
                                          Assigned& mine, Before& before) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint16_t* seen = before[warp];
  for (int e = lane; e < size.count; e += kWarp) seen[e] = 0;

  mine.begin = blockIdx.x * kMoeChunk + warp * (kWarp * kPerLane) + lane;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int a = mine.begin + i * kWarp;
    mine.expert[i] = moe_local_expert(a < size.assignments ? ids[a] : -1, size.first, size.count);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = mine.expert[i];
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const unsigned lower = same & ((1u << lane) - 1);
    __syncwarp();  // the counters are those of the round before
    if (expert >= 0) mine.rank[i] = seen[expert] + __popc(lower);
    __syncwarp();
    if (expert >= 0 && lower == 0) seen[expert] += __popc(same);
  }
  __syncthreads();
  int sum = 0;
  if (threadIdx.x < size.count) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int in_warp = before[w][threadIdx.x];
      before[w][threadIdx.x] = sum;
      sum += in_warp;
    }
  }
  __syncthreads();
  return sum;
}

// Lays out all rows and tiles, where expert threadIdx.x has so many rows.
__device__ __forceinline__ void make_plan(int rows, const Sizes& size, Plan& plan,
                                          int* __restrict__ offsets, int* __restrict__ tile_expert,
                                          int* __restrict__ tile_row) {
  __shared__ unsigned long long warp_sum[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // Rows, and tiles in the upper half: one scan for both.
  const unsigned long long tiles = (rows + size.tile - 1) / size.tile;
  unsigned long long sum = tiles << 32 | rows;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const unsigned long long lower = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += lower;
  }
  if (lane == kWarp - 1) warp_sum[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warp_sum[w];
  if (threadIdx.x == 0) plan.row[0] = plan.tile[0] = 0;
  if (threadIdx.x < size.count) {
    plan.row[threadIdx.x + 1] = static_cast<int>(sum);
    plan.tile[threadIdx.x + 1] = static_cast<int>(sum >> 32);
  }
  __syncthreads();

  if (threadIdx.x <= size.count) offsets[threadIdx.x] = plan.row[threadIdx.x];
  for (int i = threadIdx.x; i < size.tiles; i += kThreads) {
    const bool used = i < plan.tile[size.count];
    int expert = 0;
    for (int above = size.count; above - expert > 1;) {  // tile[expert] <= i < tile[above]
      const int middle = (expert + above) / 2;
      (plan.tile[middle] <= i ? expert : above) = middle;
    }
    tile_expert[i] = used ? expert : -1;
    tile_row[i] = used ? plan.row[expert] + (i - plan.tile[expert]) * size.tile : -1;
  }
}

// Writes the chunk's assignments, an expert's from start[expert] on, and -1 to those of the chunk's
// own places that are past all rows.
__device__ __forceinline__ void place(const Assigned& mine, const Before& before, const int* start,
                                      int rows, int assignments, int* __restrict__ sorted) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int a = mine.begin + i * kWarp, e = mine.expert[i];
    if (e >= 0) sorted[start[e] + before[threadIdx.x / kWarp][e] + mine.rank[i]] = a;
    if (a >= rows && a < assignments) sorted[a] = -1;
  }
}

__global__ void __launch_bounds__(kThreads)
    moe_sort(const int* __restrict__ ids, int* __restrict__ sorted, int* __restrict__ offsets,
             int* __restrict__ tile_expert, int* __restrict__ tile_row, Sizes size) {
  __shared__ Before before;
  __shared__ Plan plan;
  Assigned mine;
  const int rows = rank_chunk(ids, size, mine, before);
  make_plan(rows, size, plan, offsets, tile_expert, tile_row);
  place(mine, before, plan.row, plan.row[size.count], size.assignments, sorted);
}

__global__ void __launch_bounds__(kThreads)
    moe_count(const int* __restrict__ ids, int* __restrict__ counts, Sizes size) {
  __shared__ Before before;
  Assigned mine;
  const int rows = rank_chunk(ids, size, mine, before);
  if (threadIdx.x < size.count)
    counts[static_cast<size_t>(blockIdx.x) * size.count + threadIdx.x] = rows;
}

// A chunk's counts become those of the chunks before it.
__global__ void __launch_bounds__(kThreads)
    moe_plan(int* __restrict__ counts, int chunks, int* __restrict__ offsets,
             int* __restrict__ tile_expert, int* __restrict__ tile_row, Sizes size) {
  __shared__ Plan plan;
  int rows = 0;
  if (threadIdx.x < size.count) {
    counts += threadIdx.x;
    for (int chunk = 0; chunk < chunks; chunk += kAtOnce) {
      int in_chunk[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (chunk + i < chunks) in_chunk[i] = counts[static_cast<size_t>(chunk + i) * size.count];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (chunk + i >= chunks) break;
        counts[static_cast<size_t>(chunk + i) * size.count] = rows;
        rows += in_chunk[i];
      }
    }
  }
  make_plan(rows, size, plan, offsets, tile_expert, tile_row);
}

__global__ void __launch_bounds__(kThreads)
    moe_place(const int* __restrict__ ids, const int* __restrict__ counts,
              const int* __restrict__ offsets, int* __restrict__ sorted, Sizes size) {
  __shared__ Before before;
  __shared__ int start[kMoeMaxExperts];
  if (threadIdx.x < size.count)
    start[threadIdx.x] =
        offsets[threadIdx.x] + counts[static_cast<size_t>(blockIdx.x) * size.count + threadIdx.x];
  Assigned mine;
  rank_chunk(ids, size, mine, before);
  place(mine, before, start, offsets[size.count], size.assignments, sorted);
}

}  // namespace
}  // namespace volta

int volta_moe_permute_cuda(const int32_t* ids, int32_t* sorted, int32_t* offsets,
                           int32_t* tile_expert, int32_t* tile_row, int32_t* workspace,
                           int64_t assignments, int64_t first, int64_t count, int64_t tile,
                           int64_t tiles, cudaStream_t stream) {
  using namespace volta;
  if (!moe_permute_takes(assignments, first, count, tile, tiles)) return kBadShape;
  const Sizes size = {static_cast<int>(assignments), static_cast<int>(first),
                      static_cast<int>(count), static_cast<int>(tile), static_cast<int>(tiles)};
  if (assignments <= kMoeChunk) {
    moe_sort<<<1, kThreads, 0, stream>>>(ids, sorted, offsets, tile_expert, tile_row, size);
    return cudaGetLastError();
  }
  const int chunks = static_cast<int>((assignments + kMoeChunk - 1) / kMoeChunk);
  moe_count<<<chunks, kThreads, 0, stream>>>(ids, workspace, size);
  moe_plan<<<1, kThreads, 0, stream>>>(workspace, chunks, offsets, tile_expert, tile_row, size);
  moe_place<<<chunks, kThreads, 0, stream>>>(ids, workspace, offsets, sorted, size);
  return cudaGetLastError();
}
