// A token per row. No sort: a greedy row is one pass over its logits, a row without top-k and top-p
// two, any other three:
//
//   1. the maximum, its index and the log-sum of the softmax;
//   2. counts and masses by depth below the maximum, in 1024 bins of 1/32 nat: they tell in which
//      bins the cuts of top-k and top-p lie, bins that mostly hold a few tokens;
//   3. tokens above those bins race, those in them are listed.
//
// Then a radix search over the rank keys of the listed finds the cuts to the token, and what is
// kept of them joins the race. Where they are too many to list, the search reads the row again.
#include "../../kernels.h"
#include "row.cuh"

namespace volta {
namespace {

constexpr int kListed = 2048;
constexpr int kNoBin = kBins + 1;  // of what cannot be drawn

// 64-bit sums in two words, as shared memory adds only 32 bits natively.
struct Bins {
  uint32_t low[kBins], high[kBins];

  __device__ void clear() { low[threadIdx.x] = high[threadIdx.x] = 0; }
  __device__ uint64_t get(int bin) const { return uint64_t{high[bin]} << 32 | low[bin]; }
  __device__ void add(int bin, uint64_t value) {
    const uint32_t part = static_cast<uint32_t>(value);
    const uint32_t old = atomicAdd(low + bin, part);
    const uint32_t carried = static_cast<uint32_t>(value >> 32) + (old + part < old);
    if (carried != 0) atomicAdd(high + bin, carried);
  }
};
static_assert(kBins == kRowThreads, "a thread owns a bin");

struct Shared {
  uint64_t scratch[32];
  Request request;
  uint64_t total, count_before, mass_before, before;
  int first, last, bin;  // first and last: the bins in doubt
  int doubtful;          // tokens in them
  uint32_t list[kListed];
  uint32_t counts[kBins];
  Bins bins;
};

// The sum of the values of threads 0 to this one.
__device__ __forceinline__ uint64_t block_scan(uint64_t value, uint64_t* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) scratch[warp] = value;
  __syncthreads();
  uint64_t warps = lane < warp ? scratch[lane] : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) warps += __shfl_xor_sync(kAllLanes, warps, step);
  __syncthreads();  // scratch is free again
  return value + warps;
}

template <typename T>
struct Draw {
  static constexpr int kWide = Row<T>::kWide;

  const Row<T>& row;
  Shared& shared;
  const Request& request;  // in shared memory
  const float max, inverse_temperature;
  Leader leader;  // of what this thread has seen

  __device__ float depth(float logit) const { return depth_of(logit, max, inverse_temperature); }

  __device__ uint32_t noise(int index) const {
    uint32_t words[4];
    philox(request.seed, request.step, static_cast<uint32_t>(index / 4), words);
    const uint32_t low = index & 1 ? words[1] : words[0], high = index & 1 ? words[3] : words[2];
    return index & 2 ? high : low;
  }

  __device__ void enter(int index, float depth, uint32_t word) {
    const float weight = weight_of(depth);
    if (weight >= request.min_p) race(leader, index, weight, word);
  }

  // use(index, logit, depth) for all tokens that can be drawn.
  template <typename Use>
  __device__ __forceinline__ void for_each_token(const Use& use) const {
    const int groups = row.groups();
    for (int group = threadIdx.x; group < groups; group += kRowThreads) {
      float x[kWide];
      row.load(group, x);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const float d = depth(x[j]);
        if (d < kMaxDepth) use(group * kWide + j, x[j], d);
      }
    }
  }

  template <typename Use>
  __device__ __forceinline__ void for_each_doubt(const Use& use) const {
    const int first = shared.first, last = shared.last, doubtful = shared.doubtful;
    if (doubtful <= kListed) {
      for (int i = threadIdx.x; i < doubtful; i += kRowThreads) {
        const int index = static_cast<int>(shared.list[i]);
        const float logit = row.at(index);
        use(index, logit, depth(logit));
      }
    } else {
      for_each_token([&](int index, float logit, float d) {
        const int bin = depth_bin(d);
        if (first <= bin && bin <= last) use(index, logit, d);
      });
    }
  }

  // Everything above the bins in doubt races, what is in them is listed.
  __device__ __forceinline__ void race_row(int first, int last) {
    const int groups = row.groups();
    for (int group = threadIdx.x; group < groups; group += kRowThreads) {
      float x[kWide];
      row.load(group, x);
#pragma unroll
      for (int quad = 0; quad < kWide; quad += 4) {
        const int index = group * kWide + quad;
        int bin[4];
        bool racing = false;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float d = depth(x[quad + j]);
          bin[j] = d < kMaxDepth ? depth_bin(d) : kNoBin;
          racing |= bin[j] < first;
          if (first <= bin[j] && bin[j] <= last) {
            const int at = atomicAdd(&shared.doubtful, 1);
            if (at < kListed) shared.list[at] = static_cast<uint32_t>(index + j);
          }
        }
        if (!racing) continue;
        uint32_t words[4];
        philox(request.seed, request.step, static_cast<uint32_t>(index / 4), words);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (bin[j] < first) enter(index + j, depth(x[quad + j]), words[j]);
      }
    }
  }

  // The bins a cut may lie in, and what lies before them.
  __device__ __forceinline__ void find_doubt() {
    shared.counts[threadIdx.x] = 0;
    shared.bins.clear();
    if (threadIdx.x == 0) {
      shared.first = shared.last = kBins;
      shared.doubtful = 0;
    }
    __syncthreads();
    const bool counted = request.top_k != 0, weighed = request.nucleus;
    for_each_token([&](int, float, float d) {
      const int bin = depth_bin(d);
      if (counted) atomicAdd(shared.counts + bin, 1u);
      if (weighed) shared.bins.add(bin, mass_of(weight_of(d)));
    });
    __syncthreads();

    const int bin = threadIdx.x;
    const uint64_t own_count = shared.counts[bin], own_mass = shared.bins.get(bin);
    const uint64_t count = block_scan(own_count, shared.scratch);
    const uint64_t mass = block_scan(own_mass, shared.scratch);
    if (bin == kBins - 1) shared.total = mass;
    __syncthreads();
    if (counted && count >= request.top_k && count - own_count < request.top_k) {
      shared.last = bin;
      shared.total = mass - own_mass;  // of what top-k keeps, at least so much
    }
    __syncthreads();
    if (bin == 0 && shared.last == kBins) shared.request.top_k = 0;  // there are no more than that
    __syncthreads();
    if (weighed) {
      const uint64_t total = shared.total > 0 ? shared.total : 1;
      const uint64_t need = nucleus_mass(request.top_p, total);
      if (mass >= need && mass - own_mass < need) {
        shared.first = bin;
        if (request.top_k == 0) shared.last = bin;
      }
    } else if (bin == 0) {
      shared.first = shared.last;
    }
    __syncthreads();
    if (bin == shared.first) {
      shared.count_before = count - own_count;
      shared.mass_before = mass - own_mass;
    }
    __syncthreads();
  }

  // The largest key such that all tokens in doubt from it upwards measure `need` together.
  template <typename Measure>
  __device__ __forceinline__ uint64_t search(uint64_t need, const Measure& measure) {
    uint64_t prefix = 0;
#pragma unroll 1
    for (int shift = kDigitBits * (kDigits - 1); shift >= 0; shift -= kDigitBits) {
      shared.bins.clear();
      __syncthreads();
      for_each_doubt([&](int index, float logit, float d) {
        const uint64_t key = rank_key(logit, index) >> shift;
        if (key >> kDigitBits == prefix)
          shared.bins.add(kBins - 1 - static_cast<int>(key % kBins), measure(d));
      });
      __syncthreads();
      const uint64_t own = shared.bins.get(threadIdx.x);
      const uint64_t sum = block_scan(own, shared.scratch);
      if (sum >= need && sum - own < need) {
        shared.bin = threadIdx.x;
        shared.before = sum - own;
      }
      __syncthreads();
      need -= shared.before;
      prefix = prefix << kDigitBits | static_cast<uint64_t>(kBins - 1 - shared.bin);
    }
    return prefix;
  }

  // The rank key of the last token that top-k and top-p keep, among those in doubt.
  __device__ __forceinline__ uint64_t find_cut() {
    uint64_t cut = 0, total = shared.total;
    if (request.top_k != 0) {
      cut = search(request.top_k - shared.count_before, [](float) { return uint64_t{1}; });
      if (!request.nucleus) return cut;
      uint64_t kept = 0;
      for_each_doubt([&](int index, float logit, float d) {
        if (rank_key(logit, index) >= cut) kept += mass_of(weight_of(d));
      });
      total = shared.mass_before + block_reduce(kept, shared.scratch, Sum());
    }
    if (request.nucleus)
      cut = search(nucleus_mass(request.top_p, total) - shared.mass_before,
                   [](float d) { return mass_of(weight_of(d)); });
    return cut;
  }

  __device__ __forceinline__ int token(int likeliest) {
    enter(likeliest, 0.0f, noise(likeliest));  // always kept, and hard to beat
    if (request.top_k == 0 && !request.nucleus) {
      race_row(kBins, kBins - 1);
    } else {
      find_doubt();
      race_row(shared.first, shared.last);
      __syncthreads();
      const uint64_t cut = find_cut();
      for_each_doubt([&](int index, float logit, float d) {
        if (rank_key(logit, index) >= cut) enter(index, d, noise(index));
      });
    }
    // Times are positive, so their bits are in order.
    const uint64_t mine =
        uint64_t{float_to_bits(leader.time)} << 32 | static_cast<uint32_t>(leader.index);
    const uint64_t first = ~block_reduce(~mine, shared.scratch, Larger());
    return static_cast<int>(first & 0xffffffffu);
  }
};

template <typename T>
__global__ void __launch_bounds__(kRowThreads, 1)
    sample(const T* logits, SampleParams params, int64_t* tokens, float* logprobs, int vocab) {
  __shared__ Shared shared;
  const Row<T> row(logits, vocab);
  if (threadIdx.x == 0) shared.request = request_of(params, blockIdx.x);
  const Survey s = survey(row, shared.scratch);
  int token = s.index;
  if (token >= 0 && !shared.request.greedy) {
    const float inverse_temperature = shared.request.inverse_temperature;
    Draw<T> draw{row, shared, shared.request, s.max, inverse_temperature, {INFINITY, 0}};
    token = draw.token(s.index);
  }
  if (threadIdx.x == 0) {
    tokens[blockIdx.x] = token;
    logprobs[blockIdx.x] = token < 0 ? NAN : logprob_of(s, row.at(token));
  }
}

}  // namespace
}  // namespace volta

int volta_sample_cuda(const void* logits, int half, const float* temperature, const int32_t* top_k,
                      const float* top_p, const float* min_p, const int64_t* seeds,
                      const int64_t* steps, int64_t* tokens, float* logprobs, int64_t rows,
                      int64_t vocab, cudaStream_t stream) {
  using namespace volta;
  if (rows < 1 || rows > kMaxSize || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  const SampleParams params{temperature, top_k, top_p, min_p, seeds, steps};
  return with_logits(logits, half, [&](auto x) {
    sample<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(x, params, tokens, logprobs,
                                                                    static_cast<int>(vocab));
  });
}
