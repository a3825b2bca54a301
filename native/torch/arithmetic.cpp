#include "arithmetic.hpp"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>

// Of the OpenMP and the MKL that PyTorch brings, where it brings them. Their headers are not there.
extern "C" {
[[gnu::weak]] void GOMP_parallel(void (*does)(void*), void* with, unsigned threads, unsigned flags);
[[gnu::weak]] int omp_get_max_threads();
[[gnu::weak]] void omp_set_num_threads(int threads);
[[gnu::weak]] int MKL_Get_Max_Threads();                   // NOLINT(readability-identifier-naming)
[[gnu::weak]] int MKL_Set_Num_Threads_Local(int threads);  // NOLINT(readability-identifier-naming)
}

namespace ebbtide {

namespace {

std::atomic<bool> are_given = false;  // by a script
Threads of_libraries, of_script;      // what a new thread has, and has to have
thread_local bool has_begun = false;
std::atomic<std::uint64_t> changes_of_threads = 0;

std::atomic<std::uint64_t> changes = 1;  // 0: no thread has ever rounded otherwise

// What a thread knows of those that share its work.
struct Team {
  std::uint64_t changes = 0;
  Threads threads{};
  bool usual = true;
};

void look(void* usual) {
  if (rounding_now() != kUsualRounding) static_cast<std::atomic<bool>*>(usual)->store(false);
}

// Returns what MKL had for this thread alone: 0 for nothing.
int share_with(const Threads& threads) {
  if (omp_set_num_threads == nullptr) {
    at::set_num_threads(threads.openmp);
    return 0;
  }
  omp_set_num_threads(threads.openmp);
  return MKL_Set_Num_Threads_Local == nullptr ? 0 : MKL_Set_Num_Threads_Local(threads.mkl);
}

// This thread's numbers, which no operator and no loop changes from here on.
Threads settled() {
  begin_with_threads();
  at::get_num_threads();
  return threads_now();
}

// A new thread tells what they are before and after its first loop in PyTorch. False where none can begin.
bool are_kept(const Threads& now) {
  Threads before, after;
  try {
    std::thread([&] {
      begin_with_threads();
      before = threads_now();
      after = settled();
    }).join();
  } catch (const std::system_error&) {
    return false;
  }
  return now != before || before == after;
}

}  // namespace

Threads threads_now() {
  if (omp_get_max_threads == nullptr) return {at::get_num_threads(), 0};
  return {omp_get_max_threads(), MKL_Get_Max_Threads == nullptr ? 0 : MKL_Get_Max_Threads()};
}

void give_threads(const Threads& here, const Threads& to_new) {
  std::thread([] { of_libraries = threads_now(); }).join();
  of_script = to_new;
  are_given = has_begun = true;
  share_with(here);
}

void begin_with_threads() {
  if (has_begun) return;
  has_begun = true;
  if (are_given && threads_now() == of_libraries) share_with(of_script);
}

bool in_each_of_the_team(void (*does)(void*), void* with) {
  if (GOMP_parallel == nullptr) return false;
  GOMP_parallel(does, with, 0, 0);
  return true;
}

bool keeps_its_threads() {
  static thread_local Threads looked_at;
  static thread_local std::uint64_t looked_after = 0;
  static thread_local bool kept = false;
  Threads now = threads_now();
  std::uint64_t after = changes_of_threads;
  if (now != looked_at || after != looked_after) {
    looked_at = now;
    looked_after = after;
    kept = are_kept(now);
  }
  return kept;
}

void look_again_who_keeps_threads() { ++changes_of_threads; }

bool computes_as_usual() {
  look_again_who_rounds();
  if (rounding_now() != kUsualRounding || at::in_parallel_region() || !keeps_its_threads()) return false;
  if (GOMP_parallel == nullptr || changes == 0) return true;  // a look would begin threads that the script has not begun
  static thread_local Team team;
  std::uint64_t now = changes;
  Threads threads = threads_now();
  if (team.changes != now || team.threads != threads) {
    std::atomic<bool> usual = true;
    if (threads.openmp > 1) in_each_of_the_team(look, &usual);
    team = {now, threads, usual};
  }
  return team.usual;
}

void look_again_who_rounds() {
  if (rounding_now() != kUsualRounding) ++changes;
}

void all_have_rounded_as_usual() { changes = 0; }

WithThreads::WithThreads(const Threads& threads) : before_(settled()), changes_(threads != before_) {
  if (changes_) of_mkl_ = share_with(threads);
}

WithThreads::~WithThreads() {
  if (changes_) share_with({before_.openmp, of_mkl_});
}

}  // namespace ebbtide
