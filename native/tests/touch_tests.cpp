// Accesses that no operator announced: nothing thrashes for ever, and protection that went half way is put right.
#include <cerrno>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "../core/fault.hpp"
#include "../core/system.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {

std::vector<char*> blocks_of_2_mib(Arena& arena, unsigned count) {
  std::vector<char*> all;
  for (unsigned i = 0; i < count; ++i) all.push_back(filled_block(arena, 2 * kMiB, i));
  return all;
}

// As a fused kernel does: a few elements of each, round after round.
void go_round(const std::vector<char*>& blocks) {
  for (std::size_t at = 0; at < 2 * kMiB; at += kSmallPage) {
    for (char* p : blocks) p[at] ^= 1;
  }
}

void go_round_twice(const std::vector<char*>& blocks) {
  go_round(blocks);
  go_round(blocks);
  for (unsigned i = 0; i < blocks.size(); ++i) CHECK(filled(blocks[i], 2 * kMiB, i));
}

}  // namespace

TEST(what_another_thread_touches_in_one_operator_after_the_other_is_no_loop) {
  Arena& arena = make_arena(16 * kMiB);
  auto blocks = blocks_of_2_mib(arena, 12);
  auto on_another_thread = [](auto does) { std::thread(does).join(); };  // as a step that waits for it
  arena.begin_step(false);
  on_another_thread([&] {
    for (int round = 0; round < 8; ++round) {
      for (char* p : blocks) {
        arena.enter("mul_", {}, Work::Itself);
        p[0] ^= 1;
        arena.exit();
      }
    }
  });
  CHECK(!arena.counters().over_budget);
  on_another_thread([&] { go_round_twice(blocks); });
  CHECK(arena.counters().over_budget && has(arena.counters().message, "cycles through"));
  arena.end_step();
}

namespace {
void end_of_a_kernel_over_more_than_the_budget(bool in_operator) {
  Arena& arena = make_arena(16 * kMiB);
  auto blocks = blocks_of_2_mib(arena, 12);
  CHECK(!arena.counters().over_budget);
  if (in_operator) arena.enter("aten::hidden", {}, Work::Itself);
  go_round_twice(blocks);
  Counters c = arena.counters();
  CHECK(c.over_budget && has(c.message, "cycles through"));
  CHECK(c.faults < 12 * 6 && c.reserved <= 26 * kMiB);
  if (in_operator) arena.exit();
  arena.enter("next", {}, Work::Itself);
  arena.exit();
  c = arena.counters();
  CHECK(c.largest_operator_bytes == 24 * kMiB);
  CHECK(c.largest_operator.find(in_operator ? "aten::hidden" : "compiled kernel") != std::string::npos);
  while (arena.counters().reserved > 16 * kMiB) std::this_thread::yield();  // the budget holds again
  arena.check_invariants();
  for (unsigned i = 0; i < blocks.size(); ++i) CHECK(filled(blocks[i], 2 * kMiB, i));
}
}  // namespace

TEST(a_kernel_over_more_storages_than_the_budget_ends_and_its_need_is_named) {
  for (bool in_operator : {false, true}) {  // each by a thread of its own, which is known to no other arena
    std::thread(end_of_a_kernel_over_more_than_the_budget, in_operator).join();
  }
}

TEST(what_a_loop_goes_round_stays_within_the_budget_where_it_fits) {
  Arena& arena = make_arena(16 * kMiB);
  auto blocks = blocks_of_2_mib(arena, 12);
  std::vector<char*> some(blocks.begin(), blocks.begin() + 7);
  go_round(some);
  go_round(some);
  CHECK(!arena.counters().over_budget && arena.counters().reserved_peak <= 16 * kMiB);
  for (unsigned i = 0; i < blocks.size(); ++i) CHECK(filled(blocks[i], 2 * kMiB, i));
}

TEST(passes_with_operators_between_them_keep_the_budget) {
  Arena& arena = make_arena(16 * kMiB);
  auto blocks = blocks_of_2_mib(arena, 12);
  for (int pass = 0; pass < 12; ++pass) {
    for (unsigned i = 0; i < blocks.size(); ++i) CHECK(filled(blocks[i], 2 * kMiB, i));
    arena.enter("op", {}, Work::Itself);
    arena.exit();
  }
  CHECK(!arena.counters().over_budget && arena.counters().reserved_peak <= 16 * kMiB);
}

// --- protection that the kernel changes half way

namespace {
std::atomic<int> half_failures{0};
int half_way(void* address, std::size_t bytes, int protection) {
  if (protection != PROT_READ || half_failures.load() == 0 || half_failures.fetch_sub(1) <= 0)
    return mprotect(address, bytes, protection);
  CHECK(mprotect(address, bytes / 2 / kSmallPage * kSmallPage, protection) == 0);
  errno = ENOMEM;
  return -1;
}
// Fails half way, and then so does putting it right.
std::atomic<bool> repair_is_lost{false};
int half_way_and_lost(void* address, std::size_t bytes, int protection) {
  if (protection == (PROT_READ | PROT_WRITE) && repair_is_lost.exchange(false)) return 0;
  bool fails = protection == PROT_READ && half_failures.load() > 0;
  int result = half_way(address, bytes, protection);
  if (fails) repair_is_lost = true;
  return result;
}
}  // namespace

TEST(protection_that_fails_half_way_is_put_right) {
  for (auto call : {half_way, half_way_and_lost}) {
    Arena& arena = make_arena(0);
    char* p = filled_block(arena, 400 * 1000, 1);
    mprotect_call = call;
    half_failures = 1;
    CHECK(arena.evict(p) == 0 && arena.state(p) == State::Dirty);
    fill(p, 400 * 1000, 2);  // in the part that is read-only too
    mprotect_call = ::mprotect;
    CHECK(arena.state(p) == State::Dirty && filled(p, 400 * 1000, 2));
    CHECK(arena.evict(p) > 0 && filled(p, 400 * 1000, 2));
  }
}

// --- who has the signal

namespace {
volatile std::uintptr_t nowhere = 16;
void someone_elses(int) { _exit(7); }
void switched_off(int) {}
void take(void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  CHECK(sigaction(SIGSEGV, &action, nullptr) == 0);
}

int status_of(void (*run)(Arena&), Arena& arena) {
  pid_t child = fork();
  if (child == 0) {
    run(arena);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}
}  // namespace

TEST(the_net_stays_however_often_others_take_the_signal) {
  Arena& arena = make_arena(0);
  char* p = filled_block(arena, 4 * kMiB, 1);
  auto cycles = [](Arena& a) {
    for (int i = 0; i < 1000; ++i) {
      take(i % 3 == 1 ? switched_off : someone_elses, i % 2 == 0 ? SA_NODEFER : 0);
      CHECK(install_fault_handler(a) && fault_handler_on_top());
    }
  };
  int status = status_of(
      [](Arena& a) {
        for (int i = 0; i < 1000; ++i) {
          take(i % 3 == 1 ? switched_off : someone_elses, i % 2 == 0 ? SA_NODEFER : 0);
          if (!install_fault_handler(a)) _exit(2);
        }
        *reinterpret_cast<volatile char*>(nowhere) = 1;  // a real crash reaches the newest
      },
      arena);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  cycles(arena);
  for (int i = 0; i < 3; ++i) CHECK(arena.evict(p) > 0 && filled(p, 4 * kMiB, 1));
}

TEST(a_crash_that_a_handler_does_not_end_ends_by_default) {
  Arena& arena = make_arena(0);
  int status = status_of(
      [](Arena& a) {
        take(switched_off, 0);
        install_fault_handler(a);
        *reinterpret_cast<volatile char*>(nowhere) = 1;
      },
      arena);
  CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);  // a sanitizer may stand in for the default
}

TEST(objects_that_go_with_their_thread_may_run_operators) {
  Arena& arena = make_arena(4 * kMiB);
  auto blocks = blocks_of_2_mib(arena, 3);
  auto change_all = [&] {
    for (char* p : blocks) {
      arena.enter("add_", {{Operand{p, Access::ReadWrite}}}, Work::Itself);
      p[0] ^= 1;
      arena.exit();
    }
  };
  struct Goes {
    std::function<void()> last;
    ~Goes() { last(); }
  };
  for (bool is_older : {false, true}) {  // than the thread's first operator
    std::thread([&] {
      if (!is_older) change_all();
      static thread_local Goes goes{change_all};
      goes.last();
    }).join();
    if (is_older) change_all();
  }
  for (unsigned i = 0; i < blocks.size(); ++i) CHECK(filled(blocks[i], 2 * kMiB, i));
  arena.begin_step(false);  // nobody is in an operator
  arena.end_step();
}

TEST(kernels_may_read_a_vector_past_the_end_of_a_storage) {
  for (std::uint64_t nbytes : {std::uint64_t{64} << 10, 2 * kMiB}) {
    Arena& arena = make_arena(8 * kMiB);
    auto read_past = [nbytes](const volatile char* p) { return p[nbytes] + p[nbytes + 63] + p[nbytes + 255]; };
    char* first = filled_block(arena, nbytes, 1);
    CHECK(!arena.on_fault(first + nbytes, true));
    read_past(first);
    CHECK(arena.evict(first) > 0);
    read_past(first);  // an evicted page may be there
    CHECK(filled(first, nbytes, 1));
    std::vector<char*> others;
    for (unsigned i = 0; i < 8; ++i) others.push_back(filled_block(arena, nbytes, i));  // who takes that place has it whole
    for (unsigned i = 0; i < 8; ++i) CHECK(filled(others[i], nbytes, i));
    CHECK(filled(first, nbytes, 1));
    read_past(others.back());
    arena.check_invariants();
    for (char* p : others) arena.release(p);
    arena.release(first);
    arena.check_invariants();
  }
}
