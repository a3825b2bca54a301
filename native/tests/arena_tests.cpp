// The arena's promises one by one: bytes survive every move, races cost time only, errors lose nothing.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <memory>
#include <random>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"

using namespace ebbtide;

TEST(evicted_bytes_come_back_by_touch_alone_in_both_regions) {
  Arena& arena = make_arena(0);
  for (std::size_t n : {std::size_t{4096}, 100 * std::size_t{1024}, 2 * kMiB, 9 * kMiB, 32 * kMiB + 12}) {
    char* p = filled_block(arena, n, 1);
    CHECK(arena.evict(p) >= n && arena.state(p) == State::Absent);
    CHECK(filled(p, n, 1));
    CHECK(arena.state(p) == State::Clean);
    CHECK(arena.evict(p) >= n);  // clean: nothing is written
    Counters c = arena.counters();
    CHECK(c.evicted[4] > c.written[4]);
    static_cast<char*>(p)[n / 2] ^= 1;  // a write to an absent block
    CHECK(arena.state(p) == State::Dirty);
    static_cast<char*>(p)[n / 2] ^= 1;
    CHECK(arena.evict(p) >= n && filled(p, n, 1));
    arena.release(p);
    arena.check_invariants();
  }
}

TEST(live_bytes_may_be_four_times_the_budget_and_held_bytes_never_exceed_it) {
  constexpr std::size_t kLimit = 64 * kMiB, kBlock = 8 * kMiB;
  Arena& arena = make_arena(kLimit);
  std::vector<void*> blocks;
  for (unsigned i = 0; i < 32; ++i) blocks.push_back(filled_block(arena, kBlock, i));
  for (unsigned round = 0; round < 2; ++round) {
    for (unsigned i = 0; i < 32; ++i) CHECK(filled(blocks[i], kBlock, i));
  }
  Counters c = arena.counters();
  CHECK(c.live == 32 * kBlock && c.reserved_peak <= kLimit && !c.over_budget);
  CHECK(kBlock <= c.resident_peak && c.resident_peak <= c.reserved_peak && c.resident_byte_ns <= c.reserved_byte_ns);
  CHECK(c.faults > 0 && c.written[4] >= 24 * kBlock);
  arena.check_invariants();
  for (void* p : blocks) arena.release(p);
  CHECK(arena.counters().live == 0);
}

TEST(pages_of_a_freed_block_serve_the_next_one_of_its_size) {
  Arena& arena = make_arena(0);
  void* p = arena.allocate(8 * kMiB);
  arena.release(p);
  CHECK(arena.counters().reserved == 8 * kMiB);
  CHECK(arena.allocate(8 * kMiB) == p);
  CHECK(arena.counters().reserved == 8 * kMiB);
}

TEST(operands_stay_resident_until_the_operator_ends) {
  Arena& arena = make_arena(32 * kMiB);
  char* a = filled_block(arena, 8 * kMiB, 1);
  char* b = filled_block(arena, 8 * kMiB, 2);
  arena.evict(a);
  arena.evict(b);
  const Operand operands[] = {{a}, {b}};
  arena.enter("op", operands, Work::Itself);
  CHECK(arena.state(a) == State::Clean && arena.state(b) == State::Clean);
  void* scratch = arena.allocate(8 * kMiB);
  std::vector<void*> others;
  for (int i = 0; i < 4; ++i) {  // more than fits: only these may be evicted
    others.push_back(arena.allocate(4 * kMiB));
    arena.release(others.back());
  }
  CHECK(arena.state(a) != State::Absent && arena.state(b) != State::Absent && arena.state(scratch) == State::Dirty);
  arena.exit();
  Counters c = arena.counters();
  CHECK(c.largest_operator == "op" && c.largest_operator_bytes == 28 * kMiB && !c.over_budget);
}

TEST(a_prefetch_brings_what_there_is_room_for_and_makes_room_for_the_rest) {
  Arena& arena = make_arena(16 * kMiB);
  std::vector<Operand> wanted;
  for (unsigned i = 0; i < 3; ++i) {
    char* p = filled_block(arena, 4 * kMiB, i);
    CHECK(arena.evict(p) > 0);
    wanted.push_back({p});
  }
  std::vector<void*> old;
  for (unsigned i = 0; i < 3; ++i) old.push_back(filled_block(arena, 4 * kMiB, 10 + i));
  arena.enter("current", {}, Work::Itself);  // what came before it may be evicted
  arena.prefetch(wanted);
  for (const Operand& w : wanted) arena.fetch(w.address);
  arena.prefetch(wanted);  // nothing is left to do
  for (unsigned i = 0; i < 3; ++i)
    CHECK(arena.state(wanted[i].address) == State::Clean && filled(wanted[i].address, 4 * kMiB, i));
  arena.exit();
  CHECK(arena.counters().faults == 0 && !arena.counters().over_budget);
  for (unsigned i = 0; i < 3; ++i) CHECK(filled(old[i], 4 * kMiB, 10 + i));
}

TEST(an_outer_operators_operands_may_be_evicted_while_an_inner_one_runs) {
  Arena& arena = make_arena(16 * kMiB);
  char* a = filled_block(arena, 8 * kMiB, 1);
  const Operand outer[] = {{a}};
  arena.enter("outer", outer, Work::Itself);
  arena.enter("inner", {}, Work::Itself);
  char* b = filled_block(arena, 16 * kMiB, 2);
  CHECK(arena.state(a) == State::Absent && !arena.counters().over_budget && filled(b, 16 * kMiB, 2));
  arena.release(b);
  arena.exit();
  CHECK(arena.counters().largest_operator == "inner");
  CHECK(filled(a, 8 * kMiB, 1));
  arena.exit();
}

TEST(what_an_inner_operator_made_counts_for_the_outer_one_too) {
  Arena& arena = make_arena(0);
  arena.enter("outer", {}, Work::Itself);
  arena.enter("inner", {}, Work::Itself);
  void* made = arena.allocate(4 * kMiB);
  arena.exit();
  void* scratch = arena.allocate(4 * kMiB);
  arena.release(scratch);
  arena.exit();
  Counters c = arena.counters();
  CHECK(c.largest_operator == "outer" && c.largest_operator_bytes == 8 * kMiB);
  arena.release(made);
}

TEST(an_operator_larger_than_the_budget_goes_over_it_and_says_so) {
  Arena& arena = make_arena(8 * kMiB);
  arena.enter("large", {}, Work::Itself);
  void* a = arena.allocate(8 * kMiB);
  CHECK(!arena.counters().over_budget);
  void* b = arena.allocate(8 * kMiB);
  fill(a, 8 * kMiB, 1);
  fill(b, 8 * kMiB, 2);
  arena.exit();
  Counters c = arena.counters();
  CHECK(c.over_budget && c.largest_operator_bytes == 16 * kMiB && !c.message.empty());
  CHECK(filled(a, 8 * kMiB, 1) && filled(b, 8 * kMiB, 2));
}

TEST(where_nothing_can_be_evicted_the_bytes_that_were_reserved_are_known) {
  Arena& arena = make_arena(8 * kMiB);
  char* pinned = filled_block(arena, 4 * kMiB, 1);
  arena.pin(pinned);
  Operand none[] = {{pinned, Access::Read, 0}};
  arena.enter("fits alone", std::span(none).first(0), Work::Itself);
  void* a = arena.allocate(6 * kMiB);
  arena.exit();
  Counters c = arena.counters();
  CHECK(c.over_budget && c.largest_operator_bytes == 6 * kMiB && c.stuck_at_bytes == 10 * kMiB);
  arena.unpin(pinned);
  arena.release(a);
  arena.reset_needs();
  CHECK(arena.counters().stuck_at_bytes == 0 && arena.counters().largest_operator_bytes == 0);
}

TEST(what_the_machine_has_not_is_refused_and_not_taken) {
  Arena& arena = make_arena(8 * kMiB);
  void* pinned = arena.allocate(4 * kMiB);
  fill(pinned, 4 * kMiB, 1);
  arena.pin(pinned);
  arena.set_machine(anonymous_bytes(getpid()) + 12 * kMiB);
  Operand none[] = {{pinned, Access::Read, 0}};
  arena.enter("too large", std::span(none).first(0), Work::Itself);
  std::string said;
  try {
    arena.allocate(16 * kMiB);
  } catch (const ArenaError& error) {
    said = error.what();
  }
  arena.exit();
  CHECK(said.find("use a smaller batch") != std::string::npos);
  CHECK(!arena.counters().over_budget && arena.counters().reserved <= 8 * kMiB);
  arena.release(arena.allocate(6 * kMiB));  // beyond the budget, but the machine has it
  CHECK(arena.counters().over_budget);
  arena.set_machine(0);
  arena.release(arena.allocate(16 * kMiB));
  CHECK(filled(pinned, 4 * kMiB, 1));
  arena.unpin(pinned);
  arena.check_invariants();
}

// A collective ends whatever its caller does, and lets go of what it works on.
TEST(where_pins_will_be_let_go_an_operator_waits_for_that) {
  static std::atomic<bool> under_way;
  static void* pinned;
  static Arena* held_by;
  under_way = false;
  Options options;
  options.unpins_come = [] { return under_way.load(); };
  options.on_governor_wake = [] {
    if (under_way.exchange(false)) held_by->unpin(pinned);
  };
  Arena& arena = make_arena(8 * kMiB, options);
  held_by = &arena;
  pinned = arena.allocate(4 * kMiB);
  fill(pinned, 4 * kMiB, 1);
  arena.pin(pinned);
  under_way = true;
  void* a = arena.allocate(6 * kMiB);
  CHECK(!under_way && !arena.counters().over_budget);
  CHECK(filled(pinned, 4 * kMiB, 1));
  arena.pin(pinned);
  arena.enter("needs both", {}, Work::Itself);
  void* b = arena.allocate(6 * kMiB);  // nobody will let go of it
  arena.exit();
  CHECK(arena.counters().over_budget);
  arena.unpin(pinned);
  arena.release(a);
  arena.release(b);
}

// Rather than until the watchdog; and the other one then finds room.
TEST(operators_that_wait_for_each_other_do_not_wait) {
  Arena& arena = make_arena(8 * kMiB);
  std::barrier both_hold(2);
  auto needs_all = [&] {
    arena.enter("needs all", {}, Work::Itself);
    char* a = filled_block(arena, 4 * kMiB, 1);
    both_hold.arrive_and_wait();
    char* b = filled_block(arena, 4 * kMiB, 2);
    CHECK(filled(a, 4 * kMiB, 1) && filled(b, 4 * kMiB, 2));  // after its end that is a fault, which waits for nobody
    arena.exit();
    arena.release(a);
    arena.release(b);
  };
  std::thread one(needs_all), other(needs_all);
  one.join();
  other.join();
  Counters c = arena.counters();
  CHECK(c.over_budget && c.message.find("more at once") != std::string::npos && c.reserved_peak == 12 * kMiB);
}

// Changes that help nobody do not begin its wait anew.
TEST(the_watchdog_counts_from_where_a_wait_began) {
  Options options;
  options.watchdog_ns = 500'000'000;
  Arena& arena = make_arena(4 * kMiB, options);
  std::barrier hold(3), let_go(3);
  auto work = [&](std::size_t bytes) {
    arena.enter("long", {}, Work::Itself);
    void* p = bytes > 0 ? arena.allocate(bytes) : nullptr;
    hold.arrive_and_wait();
    let_go.arrive_and_wait();
    arena.exit();
    if (p != nullptr) arena.release(p);
  };
  std::thread holds([&] { work(4 * kMiB); }), computes([&] { work(0); });
  hold.arrive_and_wait();
  std::atomic<bool> waits{true};
  std::thread wants([&] {
    arena.release(arena.allocate(4 * kMiB));
    waits = false;
  });
  while (waits) arena.set_limits(4 * kMiB, 0);
  CHECK(arena.counters().over_budget && arena.counters().message.find("watchdog") != std::string::npos);
  let_go.arrive_and_wait();
  wants.join();
  holds.join();
  computes.join();
}

TEST(what_is_set_aside_for_another_process_leaves_the_arena_and_comes_back) {
  Arena& arena = make_arena(0);
  char* a = filled_block(arena, 16 * kMiB, 1);
  std::uint64_t bound = process_memory().resident + 64 * kMiB;
  arena.set_limits(0, bound);
  std::uint64_t before = arena.counters().arena_limit;
  arena.set_aside(32 * kMiB, 0);
  CHECK(arena.counters().arena_limit + 31 * kMiB <= before);
  arena.set_aside(0, 0);
  CHECK(arena.counters().arena_limit + 8 * kMiB >= before);
  CHECK(anonymous_bytes(getpid()) > 16 * kMiB);
  arena.set_limits(0, 0);
  CHECK(filled(a, 16 * kMiB, 1));
}

TEST(a_child_that_room_is_set_aside_for_goes_before_the_budget_does) {
  Arena& arena = make_arena(0);
  arena.set_watchdog(std::int64_t{1} << 62);
  std::uint64_t bound = process_memory().resident + 96 * kMiB;
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  arena.set_limits(0, bound);
  arena.set_aside(64 * kMiB, child);
  CHECK(arena.counters().arena_limit < 40 * kMiB);
  void* a = arena.allocate(48 * kMiB);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(!arena.counters().over_budget && arena.counters().arena_limit >= 48 * kMiB);
  CHECK(!kill_child(child) && !kill_child(getppid()));
  arena.release(a);
  arena.set_limits(0, 0);
}

// --- a write forced at every point of an eviction

namespace {
struct Interference {
  Point point = Point::Queued;
  std::atomic<bool> armed{false};
  std::counting_semaphore<> reached{0};
  std::counting_semaphore<> written{0};
};
void interfere(Point point, BlockId, void* argument) {
  auto& i = *static_cast<Interference*>(argument);
  if (point != i.point || !i.armed.exchange(false)) return;
  i.reached.release();
  // Where the mutex is held the write has to wait for it; elsewhere it must get through before the transfer goes on.
  if (point != Point::Queued && point != Point::Evicting) i.written.acquire();
}
}  // namespace

TEST(a_write_at_any_point_of_an_eviction_is_not_lost) {
  for (Point point : {Point::Queued, Point::BeforeChunk, Point::AfterChunk, Point::Evicting}) {
    for (std::size_t n : {64 * std::size_t{1024}, 2 * kMiB, 12 * kMiB}) {
      auto* interference = new Interference;
      interference->point = point;
      Options options;
      options.hook = {interfere, interference};
      Arena& arena = make_arena(0, options);
      auto* p = static_cast<char*>(arena.allocate(n));
      for (unsigned round = 0; round < 5; ++round) {
        fill(p, n, round);
        interference->armed = true;
        std::size_t place = (n / 5) * round + 17;
        std::thread writer([&] {
          interference->reached.acquire();
          p[place] = 77;
          interference->written.release();
        });
        arena.evict(p);
        writer.join();
        CHECK(p[place] == 77);
        p[place] = 0;
        fill(p, n, round);
        CHECK(arena.evict(p) > 0);  // after the last chunk of the cancelled one: no round meets another's
        CHECK(filled(p, n, round));
        arena.check_invariants();
      }
      if (point == Point::BeforeChunk || point == Point::AfterChunk) CHECK(arena.counters().cancelled >= 5);
    }
  }
}

TEST(a_disk_that_never_answers_makes_the_watchdog_go_over_budget_instead_of_hanging) {
  auto* interference = new Interference;
  interference->point = Point::BeforeChunk;
  interference->armed = true;
  Options options;
  options.hook = {interfere, interference};
  options.watchdog_ns = 50'000'000;
  Arena& arena = make_arena(4 * kMiB, options);
  char* p = filled_block(arena, 4 * kMiB, 1);
  std::thread evictor([&] { arena.evict(p); });
  interference->reached.acquire();  // the one chunk of the eviction is stuck in the disk
  void* q = arena.allocate(4 * kMiB);
  CHECK(arena.counters().over_budget && arena.counters().message.find("watchdog") != std::string::npos);
  fill(q, 4 * kMiB, 2);
  interference->written.release();
  evictor.join();
  CHECK(filled(p, 4 * kMiB, 1) && filled(q, 4 * kMiB, 2));
}

TEST(the_watchdog_counts_no_time_for_which_the_process_was_stopped) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  auto expired_after = [](std::int64_t stopped) {
    Watchdog watchdog(30 * kSecond);
    std::int64_t now = 1000 * kSecond;
    const std::int64_t since = now;
    for (; now < since + 5 * kSecond; now += kSecond / 20) CHECK(!watchdog.has_expired(now, since));
    now += stopped;
    int looks = 0;
    for (; !watchdog.has_expired(now, since); now += kSecond / 20) ++looks;
    return looks / 20;
  };
  CHECK(expired_after(0) == 25);
  CHECK(expired_after(3600 * kSecond) == 30);
}

// A profiler is told while nobody holds the mutex, so pages that were granted may be gone by then.
TEST(what_labels_of_waits_let_happen_leaves_the_count_of_pages_true) {
  Options options;
  options.labels = {[](Stall) -> void* { return &errno; },
                    [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(100)); }};
  Arena& arena = make_arena(24 * kMiB, options);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 3; ++number) {
    threads.emplace_back([&arena, number] {
      std::mt19937 random(number);
      std::vector<char*> mine;
      for (int i = 0; i < 400; ++i) {
        mine.push_back(static_cast<char*>(arena.allocate(std::size_t{4096} << random() % 11)));
        mine.back()[0] = 1;
        if (mine.size() <= 12) continue;
        std::swap(mine[random() % mine.size()], mine.back());
        arena.release(mine.back());
        mine.pop_back();
      }
      for (char* p : mine) arena.release(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  arena.check_invariants();
}

TEST(a_size_that_no_address_space_has_is_refused) {
  Arena& arena = make_arena(0);
  char* before = filled_block(arena, 4 * kMiB, 1);
  for (std::size_t nbytes : {std::size_t{1} << 53, (std::size_t{1} << 53) + 4096, std::size_t{1} << 60, ~std::size_t{0} >> 1})
    CHECK(has(refusal_of([&] { arena.allocate(nbytes); }), "address space"));
  CHECK(filled(before, 4 * kMiB, 1));
}

TEST(a_block_freed_during_its_eviction_keeps_its_place_until_the_write_has_drained) {
  auto* interference = new Interference;
  interference->point = Point::BeforeChunk;
  Options options;
  options.hook = {interfere, interference};
  Arena& arena = make_arena(0, options);
  for (unsigned round = 0; round < 20; ++round) {
    char* p = filled_block(arena, 4 * kMiB, round);
    interference->armed = true;
    std::thread evictor([&] { arena.evict(p); });
    interference->reached.acquire();
    arena.release(p);
    void* q = arena.allocate(4 * kMiB);
    CHECK(q != p);  // else the late write could land on its file copy
    fill(q, 4 * kMiB, 100 + round);
    interference->written.release();
    evictor.join();
    CHECK(arena.evict(q) > 0 && filled(q, 4 * kMiB, 100 + round));
    arena.release(q);
    arena.check_invariants();
  }
}

TEST(several_threads_touching_one_absent_block_all_see_its_bytes) {
  constexpr int kThreads = 4, kRounds = 250;
  Arena& arena = make_arena(0);
  for (std::size_t n : {64 * std::size_t{1024}, 4 * kMiB}) {
    auto* p = static_cast<std::uint32_t*>(arena.allocate(n));
    fill(p, n, 5);
    std::barrier start(kThreads + 1), end(kThreads + 1);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < kRounds; ++round) {
          start.arrive_and_wait();
          std::size_t i = (static_cast<std::size_t>(round) * 7919 + static_cast<std::size_t>(t) * 131) % (n / 4);
          if (p[i] != static_cast<std::uint32_t>(i) * 2654435761u + 5) ++wrong;
          end.arrive_and_wait();
        }
      });
    }
    for (int round = 0; round < kRounds; ++round) {
      CHECK(arena.evict(p) > 0);
      start.arrive_and_wait();
      end.arrive_and_wait();
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST(a_pinned_block_stays_and_takes_the_kernels_writes) {
  Arena& arena = make_arena(8 * kMiB);
  char* p = filled_block(arena, 4 * kMiB, 1);
  CHECK(arena.evict(p) > 0);
  int fd = open("/dev/zero", O_RDONLY);
  CHECK(read(fd, p, 100) < 0 && errno == EFAULT);  // what the kernel says of an absent block
  CHECK(arena.pin(p + 50) == 0);
  CHECK(read(fd, p, 100) == 100);
  close(fd);
  CHECK(arena.evict(p) == 0);
  arena.release(arena.allocate(4 * kMiB));
  CHECK(arena.state(p) == State::Dirty);
  arena.unpin(p);
  CHECK(arena.evict(p) > 0 && p[99] == 0 && p[100] != 0);
  CHECK(arena.pin(&arena) == ENOENT);
}

// --- steps and kinds

TEST(traffic_counts_for_the_kind_a_storage_turns_out_to_be) {
  Arena& arena = make_arena(0);
  arena.begin_step();
  void* gradient = arena.allocate(2 * kMiB);
  void* activation = arena.allocate(2 * kMiB);
  void* other = arena.allocate(2 * kMiB);
  for (void* p : {gradient, activation, other}) CHECK(arena.evict(p) > 0);
  arena.classify(gradient, Kind::Gradient);
  arena.release(activation);
  arena.end_step();
  Counters c = arena.counters();
  CHECK(c.evicted[1] == 2 * kMiB && c.evicted[3] == 2 * kMiB && c.evicted[4] == 2 * kMiB && c.evicted[0] == 0);
}

TEST(what_lies_between_two_edges_of_a_step_is_never_negative_whatever_is_classified_when) {
  Arena& arena = make_arena(0);
  void* gradient = arena.allocate(2 * kMiB);
  CHECK(arena.evict(gradient) > 0);  // between steps, and of no kind yet
  Counters before = arena.begin_step();
  CHECK(before.evicted[4] == 2 * kMiB);
  CHECK(arena.fetch(gradient) == 0 && arena.evict(gradient) > 0);
  arena.classify(gradient, Kind::Gradient);
  CHECK(arena.fetch(gradient) == 0);
  Counters after = arena.end_step();
  CHECK(after.evicted[4] == before.evicted[4] && after.evicted[1] == 2 * kMiB);
  CHECK(after.fetched[4] == 0 && after.fetched[1] == 4 * kMiB);
  arena.classify(gradient, Kind::Parameter);  // what was counted stays counted
  CHECK(arena.evict(gradient) > 0);
  Counters next = arena.begin_step();
  CHECK(next.evicted[1] == after.evicted[1] && next.evicted[0] == 2 * kMiB);
  arena.end_step();
}

// --- fork

TEST(what_a_forked_child_needs_comes_back_though_training_memory_fills_the_budget) {
  Arena& arena = make_arena(32 * kMiB);
  void* data[] = {arena.allocate(4 * kMiB), arena.allocate(100 * std::size_t{1024}), arena.allocate(4 * kMiB)};
  const std::size_t sizes[] = {4 * kMiB, 100 * std::size_t{1024}, 4 * kMiB};
  for (unsigned i = 0; i < 3; ++i) {
    fill(data[i], sizes[i], i);
    arena.evict(data[i]);
  }
  std::vector<void*> weights;
  for (unsigned i = 0; i < 8; ++i) {
    weights.push_back(arena.allocate(8 * kMiB));
    arena.classify(weights.back(), Kind::Parameter);
    fill(weights.back(), 8 * kMiB, 10 + i);
  }
  CHECK(arena.counters().reserved > 28 * kMiB);
  for (void* p : data) CHECK(arena.state(p) == State::Absent);
  CHECK(in_child([&] {
    bool right = true;
    for (unsigned i = 0; i < 3; ++i) right = right && filled(data[i], sizes[i], i);
    return right;
  }));
  CHECK(arena.counters().reserved_peak <= 32 * kMiB && !arena.counters().over_budget);
  for (unsigned i = 0; i < 8; ++i) CHECK(filled(weights[i], 8 * kMiB, 10 + i));
}
