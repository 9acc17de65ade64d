// A pool for kernels of a few microseconds on machines that do other things too.
//
// OpenMP waits for its whole team, spinning: with one other busy process on two cores that made a
// token 20 times slower. Here the caller takes chunks itself and waits only for chunks in work, and
// idle workers soon sleep.
#pragma once

#include <cstdint>

namespace volta {

using RangeFunction = void (*)(const void* body, int64_t begin, int64_t end);

void run_parallel(int64_t count, int threads, RangeFunction function, const void* body);

// Calls body(begin, end) on ranges that cover [0, count), on up to `threads` threads, the caller's
// among them. Of calls at the same time one gets the pool, the others run on their own thread.
template <typename Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  run_parallel(
      count, threads,
      [](const void* self, int64_t begin, int64_t end) {
        (*static_cast<const Body*>(self))(begin, end);
      },
      &body);
}

}  // namespace volta
