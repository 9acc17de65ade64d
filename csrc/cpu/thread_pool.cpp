#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

namespace volta {
namespace {

constexpr int kChunksPerThread = 4;  // so that a thread that lost its core holds up little
constexpr int kSpins = 2000;         // some 50 us: about the gap between two kernels of a model

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns the value once it differs from `old`.
uint32_t await_change(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

class ThreadPool {
 public:
  void run(int64_t count, int threads, RangeFunction function, const void* body) {
    const std::unique_lock<std::mutex> lock(caller_, std::try_to_lock);
    if (!lock || threads <= 1 || count <= 1) return function(body, 0, count);

    const int helpers = threads - 1;
    for (; workers_ < helpers; ++workers_) std::thread(&ThreadPool::work, this, workers_).detach();

    function_ = function;
    body_ = body;
    count_ = count;
    chunks_ = static_cast<uint32_t>(std::min<int64_t>(count, int64_t{threads} * kChunksPerThread));
    helpers_.store(helpers, std::memory_order_relaxed);
    pending_.store(chunks_, std::memory_order_relaxed);
    const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
    ticket_.store(uint64_t{generation} << 32 | chunks_, std::memory_order_release);
    generation_.store(generation, std::memory_order_release);
    generation_.notify_all();

    take_chunks(generation);
    for (uint32_t left = pending_.load(std::memory_order_acquire); left != 0;)
      left = await_change(pending_, left);
  }

 private:
  void work(int id) {
    for (uint32_t generation = 0;;) {
      generation = await_change(generation_, generation);
      if (id < helpers_.load(std::memory_order_relaxed)) take_chunks(generation);
    }
  }

  // The job's fields are read only once a chunk of it is held: until that is done they stand.
  void take_chunks(uint32_t generation) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (ticket >> 32 == generation && static_cast<uint32_t>(ticket) != 0) {
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      const int64_t chunk = chunks_ - static_cast<uint32_t>(ticket);
      function_(body_, count_ * chunk / chunks_, count_ * (chunk + 1) / chunks_);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  std::mutex caller_;
  int workers_ = 0;
  RangeFunction function_ = nullptr;
  const void* body_ = nullptr;
  int64_t count_ = 0;
  uint32_t chunks_ = 0;
  std::atomic<int> helpers_{0};
  std::atomic<uint32_t> pending_{0};     // chunks of this job not yet done
  std::atomic<uint32_t> generation_{0};  // number of the job; workers wait for it to change
  std::atomic<uint64_t> ticket_{0};      // generation in the upper half, chunks left in the lower
};

}  // namespace

void run_parallel(int64_t count, int threads, RangeFunction function, const void* body) {
  // Never destroyed: its workers may outlive every static object.
  static ThreadPool* const pool = new ThreadPool;
  pool->run(count, threads, function, body);
}

}  // namespace volta
