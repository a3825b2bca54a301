#include "arithmetic.hpp"

#include <atomic>
#include <cstdint>

// Of the OpenMP and the MKL that PyTorch brings, where it brings them. Their headers are not there.
extern "C" {
[[gnu::weak]] void GOMP_parallel(void (*does)(void*), void* with, unsigned threads, unsigned flags);
[[gnu::weak]] void omp_set_num_threads(int threads);
[[gnu::weak]] int MKL_Set_Num_Threads_Local(int threads);  // NOLINT(readability-identifier-naming)
}

namespace ebbtide {

namespace {

std::atomic<std::uint64_t> changes = 1;  // 0: no thread has ever rounded otherwise

// What a thread knows of those that share its work.
struct Team {
  std::uint64_t changes = 0;
  int threads = 0;
  bool usual = true;
};

void look(void* usual) {
  if (rounding_now() != kUsualRounding) static_cast<std::atomic<bool>*>(usual)->store(false);
}

// Returns the number that MKL had.
int share_with(int threads, int of_mkl) {
  if (omp_set_num_threads == nullptr) {
    at::set_num_threads(threads);
    return threads;
  }
  omp_set_num_threads(threads);
  return MKL_Set_Num_Threads_Local == nullptr ? 0 : MKL_Set_Num_Threads_Local(of_mkl);
}

}  // namespace

bool computes_as_usual() {
  look_again_who_rounds();
  if (rounding_now() != kUsualRounding || at::in_parallel_region()) return false;
  if (GOMP_parallel == nullptr || changes == 0) return true;  // a look would begin threads that the script has not begun
  static thread_local Team team;
  std::uint64_t now = changes;
  int threads = at::get_num_threads();
  if (team.changes != now || team.threads != threads) {
    std::atomic<bool> usual = true;
    if (threads > 1) GOMP_parallel(look, &usual, 0, 0);
    team = {now, threads, usual};
  }
  return team.usual;
}

void look_again_who_rounds() {
  if (rounding_now() != kUsualRounding) ++changes;
}

void all_have_rounded_as_usual() { changes = 0; }

WithThreads::WithThreads(int threads) : before_(at::get_num_threads()), changes_(threads != before_) {
  if (changes_) of_mkl_ = share_with(threads, threads);
}

WithThreads::~WithThreads() {
  if (changes_) share_with(before_, of_mkl_);
}

}  // namespace ebbtide
