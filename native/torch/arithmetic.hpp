// What a thread has of its own, and its operators' bits depend on: how it rounds, and how many threads share its work.
#pragma once

#include <ATen/Parallel.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ebbtide {

// Rounding, and what becomes of denormal numbers. Threads that share a thread's work have what it had when they began.
#if defined(__x86_64__)
constexpr unsigned kUsualRounding = _MM_MASK_MASK;
inline unsigned rounding_now() { return _mm_getcsr() & ~unsigned{_MM_EXCEPT_MASK}; }
inline void round_so(unsigned rounding) { _mm_setcsr(rounding); }
#else
constexpr unsigned kUsualRounding = 0;
inline unsigned rounding_now() { return kUsualRounding; }
inline void round_so(unsigned) {}
#endif

// Says whether this thread and those that share its work all round as usual, and others share it at all: within at::parallel_for
// none do.
bool computes_as_usual();
void look_again_who_rounds();  // a setting changes, and threads may have begun before
void all_have_rounded_as_usual();  // so far, in this process

// This thread's number of threads, for a while. at::set_num_threads would set that of threads yet to begin, too.
class WithThreads {
 public:
  explicit WithThreads(int threads);
  ~WithThreads();
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  const int before_;
  const bool changes_;
  int of_mkl_ = 0;
};

}  // namespace ebbtide
