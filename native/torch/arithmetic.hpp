// What a thread has of its own, and its operators' bits depend on: how it rounds, and how many threads share its work.
#pragma once

#include <xmmintrin.h>

namespace ebbtide {

// Rounding, and what becomes of denormal numbers. Threads that share a thread's work have what it had when they began.
constexpr unsigned kUsualRounding = _MM_MASK_MASK;
inline unsigned rounding_now() { return _mm_getcsr() & ~unsigned{_MM_EXCEPT_MASK}; }
inline void round_so(unsigned rounding) { _mm_setcsr(rounding); }

// How many threads share this one's work: in PyTorch's and oneDNN's loops, and in MKL's products. at::get_num_threads does not
// only tell. It gives a thread PyTorch's number at its first call, as the thread's first loop in PyTorch does, and products before
// that have MKL's own number. So it is not for the script's threads.
struct Threads {
  int openmp = 0;
  int mkl = 0;

  bool operator==(const Threads&) const = default;
};
Threads threads_now();

// Gives this thread numbers, and those whose first operator is yet to come: a script named them too late for the libraries to read
// them.
void give_threads(const Threads& here, const Threads& to_new);
void begin_with_threads();  // at an operator

// Has each thread of the team that shares this one's work call this. False where OpenMP is not GNU's.
bool in_each_of_the_team(void (*does)(void*), void* with);

// Says whether its first loop in PyTorch gives this thread no other numbers: a look by a new thread, after each change of this one's
// or of PyTorch's.
bool keeps_its_threads();
void look_again_who_keeps_threads();  // PyTorch's changes

// Says whether this thread keeps its numbers, it and those that share its work all round as usual, and others share it at all:
// within at::parallel_for none do.
bool computes_as_usual();
void look_again_who_rounds();  // a setting changes, and threads may have begun before
void all_have_rounded_as_usual();  // so far, in this process

// This thread's numbers, for a while. at::set_num_threads would set that of threads yet to begin, too. For threads of ours, and those
// that keep theirs.
class WithThreads {
 public:
  explicit WithThreads(const Threads& threads);
  ~WithThreads();
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  const Threads before_;
  const bool changes_;
  int of_mkl_ = 0;
};

}  // namespace ebbtide
