// A row after the other, as ../cuda/sampling/sample.cu does it: see there for why.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "../kernels.h"
#include "../sampling_math.h"
#include "thread_pool.h"

namespace volta {
namespace {

constexpr int kListed = 2048;

struct Survey {
  float max;
  int64_t index;  // -1: no logit is above -inf
  float log_sum;  // of e^(logit - max)
};

Survey survey(const float* x, int64_t vocab) {
  Survey s{-INFINITY, -1, 0};
  for (int64_t i = 0; i < vocab; ++i) {
    const float logit = clean_logit(x[i]);
    if (logit > s.max) s = {logit, i, 0};
  }
  if (s.index < 0) return s;
  double sum = 0;
  for (int64_t i = 0; i < vocab; i += 64) {  // a loop the compiler vectorises
    float weight[64];
    const int count = static_cast<int>(std::min<int64_t>(64, vocab - i));
    for (int j = 0; j < count; ++j) {
      const float depth = add(s.max, -clean_logit(x[i + j]));
      weight[j] = weight_of(depth < 87.0f ? depth : 87.0f);
    }
    for (int j = 0; j < count; ++j) sum += weight[j];
  }
  s.log_sum = static_cast<float>(std::log(sum));
  return s;
}

float logprob_of(const Survey& s, float logit) {
  return s.index < 0 ? NAN : (clean_logit(logit) - s.max) - s.log_sum;
}

class Draw {
 public:
  Draw(const float* x, int64_t vocab, const Survey& s, const Request& request)
      : x_(x), vocab_(vocab), max_(s.max), request_(request), leader_{INFINITY, 0} {
    enter(s.index, 0.0f);
  }

  int64_t token() {
    if (request_.top_k == 0 && !request_.nucleus) {
      for_each_token([&](int64_t i, float, float depth) { enter(i, depth); });
      return leader_.index;
    }
    find_doubt();
    for_each_token([&](int64_t i, float, float depth) {
      const int bin = depth_bin(depth);
      if (bin < first_) return enter(i, depth);
      if (bin > last_) return;
      if (doubtful_ < kListed) list_[doubtful_] = static_cast<uint32_t>(i);
      ++doubtful_;
    });
    const uint64_t cut = find_cut();
    for_each_doubt([&](int64_t i, float logit, float depth) {
      if (rank_key(logit, i) >= cut) enter(i, depth);
    });
    return leader_.index;
  }

 private:
  // use(index, logit, depth) for all that can be drawn.
  template <typename Use>
  void for_each_token(const Use& use) const {
    for (int64_t i = 0; i < vocab_; ++i) visit(i, use);
  }

  template <typename Use>
  void for_each_doubt(const Use& use) const {
    if (doubtful_ <= kListed) {
      for (int64_t i = 0; i < doubtful_; ++i) visit(list_[i], use);
    } else {
      for_each_token([&](int64_t i, float logit, float depth) {
        const int bin = depth_bin(depth);
        if (first_ <= bin && bin <= last_) use(i, logit, depth);
      });
    }
  }

  template <typename Use>
  void visit(int64_t i, const Use& use) const {
    const float logit = clean_logit(x_[i]);
    const float depth = depth_of(logit, max_, request_.inverse_temperature);
    if (depth < kMaxDepth) use(i, logit, depth);
  }

  void enter(int64_t i, float depth) {
    const float weight = weight_of(depth);
    if (weight < request_.min_p) return;
    if (block_ != i / 4) philox(request_.seed, request_.step, static_cast<uint32_t>(i / 4), noise_);
    block_ = i / 4;
    race(leader_, static_cast<int>(i), weight, noise_[i % 4]);
  }

  // The bins a cut may lie in, and what lies before them.
  void find_doubt() {
    uint32_t counts[kBins] = {};
    uint64_t masses[kBins] = {};
    for_each_token([&](int64_t, float, float depth) {
      const int bin = depth_bin(depth);
      ++counts[bin];
      masses[bin] += mass_of(weight_of(depth));
    });
    uint64_t count = 0, mass = 0;
    for (last_ = 0; last_ < kBins; ++last_) {
      if (request_.top_k != 0 && count + counts[last_] >= request_.top_k) break;
      count += counts[last_];
      mass += masses[last_];
    }
    if (last_ == kBins) request_.top_k = 0;  // there are no more than that
    total_ = mass;                           // at least so much, with top-k
    first_ = last_;
    if (request_.nucleus) {
      const uint64_t need = nucleus_mass(request_.top_p, std::max<uint64_t>(total_, 1));
      count = mass = 0;
      for (first_ = 0; mass + masses[first_] < need; ++first_) {
        count += counts[first_];
        mass += masses[first_];
      }
      if (request_.top_k == 0) last_ = first_;
    }
    count_before_ = count;
    mass_before_ = mass;
  }

  // The rank key of the last token that top-k and top-p keep, among those in doubt.
  uint64_t find_cut() {
    uint64_t cut = 0;
    if (request_.top_k != 0) {
      cut = search(request_.top_k - count_before_, [](float) { return uint64_t{1}; });
      total_ = mass_before_;
      for_each_doubt([&](int64_t i, float logit, float depth) {
        if (rank_key(logit, i) >= cut) total_ += mass_of(weight_of(depth));
      });
    }
    if (request_.nucleus)
      cut = search(nucleus_mass(request_.top_p, total_) - mass_before_,
                   [](float depth) { return mass_of(weight_of(depth)); });
    return cut;
  }

  // The largest key such that all from it upwards measure `need` together.
  template <typename Measure>
  uint64_t search(uint64_t need, const Measure& measure) const {
    uint64_t prefix = 0;
    for (int shift = kDigitBits * (kDigits - 1); shift >= 0; shift -= kDigitBits) {
      uint64_t bins[kBins] = {};
      for_each_doubt([&](int64_t i, float logit, float depth) {
        const uint64_t key = rank_key(logit, i) >> shift;
        if (key >> kDigitBits == prefix) bins[key % kBins] += measure(depth);
      });
      int digit = kBins - 1;
      for (; bins[digit] < need; --digit) need -= bins[digit];
      prefix = prefix << kDigitBits | static_cast<uint64_t>(digit);
    }
    return prefix;
  }

  const float* x_;
  int64_t vocab_;
  float max_;
  Request request_;
  Leader leader_;
  int64_t block_ = -1;  // of four tokens, whose noise is at hand
  uint32_t noise_[4];
  int first_, last_;  // bins in doubt
  uint64_t count_before_, mass_before_, total_;
  int64_t doubtful_ = 0;
  uint32_t list_[kListed];  // the first of them
};

}  // namespace
}  // namespace volta

int volta_sample_cpu(const void* logits, int half, const float* temperature, const int32_t* top_k,
                     const float* top_p, const float* min_p, const int64_t* seeds,
                     const int64_t* steps, int64_t* tokens, float* logprobs, int64_t rows,
                     int64_t vocab, int threads) {
  using namespace volta;
  if (half) return kBadFormat;
  if (rows < 1 || vocab < 1 || vocab > kMaxVocab) return kBadShape;
  const SampleParams params{temperature, top_k, top_p, min_p, seeds, steps};
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = static_cast<const float*>(logits) + row * vocab;
      const Survey s = survey(x, vocab);
      const Request request = request_of(params, row);
      tokens[row] = s.index;
      if (s.index >= 0 && !request.greedy) tokens[row] = Draw(x, vocab, s, request).token();
      logprobs[row] = s.index < 0 ? NAN : logprob_of(s, x[tokens[row]]);
    }
  });
  return kOk;
}

int volta_top_logprobs_cpu(const void* logits, int half, float* values, int64_t* ids, int64_t rows,
                           int64_t vocab, int64_t n, int threads) {
  using namespace volta;
  if (half) return kBadFormat;
  if (rows < 1 || vocab < 1 || vocab > kMaxVocab || n < 1 || n > kMaxTopLogprobs || n > vocab)
    return kBadShape;
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = static_cast<const float*>(logits) + row * vocab;
      const Survey s = survey(x, vocab);
      uint64_t top[kMaxTopLogprobs] = {};  // keys, the largest first
      for (int64_t i = 0; i < vocab; ++i) {
        uint64_t key = rank_key(clean_logit(x[i]), i);
        if (key < top[n - 1]) continue;
        for (int64_t at = 0; at < n; ++at)
          if (key > top[at]) std::swap(key, top[at]);
      }
      for (int64_t at = 0; at < n; ++at) {
        ids[row * n + at] = key_index(top[at]);
        values[row * n + at] = logprob_of(s, key_logit(top[at]));
      }
    }
  });
  return kOk;
}

int volta_token_logprobs_cpu(const void* logits, int half, const int64_t* ids, float* values,
                             int64_t rows, int64_t vocab, int64_t n, int threads) {
  using namespace volta;
  if (half) return kBadFormat;
  if (rows < 1 || vocab < 1 || vocab > kMaxVocab || n < 1) return kBadShape;
  parallel_for(rows, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = static_cast<const float*>(logits) + row * vocab;
      const Survey s = survey(x, vocab);
      for (int64_t at = row * n; at < (row + 1) * n; ++at)
        values[at] = ids[at] < 0 || ids[at] >= vocab ? NAN : logprob_of(s, x[ids[at]]);
    }
  });
  return kOk;
}
