// What a thread has of its own, and its operators' bits depend on: how it rounds, and how many threads share its work.
#pragma once

#include <ATen/Parallel.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <thread>

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

// This thread's number of threads, for a while. Who sets it sets the number of threads yet to begin, too, so that is put back.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(at::get_num_threads()), changes_(threads != before_) {
    if (!changes_) return;
    std::thread([this] { of_new_ones_ = at::get_num_threads(); }).join();
    at::set_num_threads(threads);
  }
  ~WithThreads() {
    if (!changes_) return;
    at::set_num_threads(before_);
    std::thread([this] { at::set_num_threads(of_new_ones_); }).join();
  }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  const int before_;
  const bool changes_;
  int of_new_ones_ = 0;
};

}  // namespace ebbtide
