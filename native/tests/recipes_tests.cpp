// Contents that can be made anew: they leave without a copy, and nobody sees them half made, or made of what has changed.
#include <semaphore.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.hpp"

using namespace ebbtide;

namespace {

// A maker whose one operator adds up two storages, word by word.
class Maker {
 public:
  Maker() {
    sem_init(&asked_, 0, 0);
    std::thread([this] { make_what_is_asked(); }).detach();
  }

  // Async-signal-safe.
  void ask(const void* address, bool to_write) {
    (to_write ? to_free_ : to_make_) = address;
    sem_post(&asked_);
  }

  void learn(const void* sum, std::size_t n, const void* one, const void* other) {
    std::lock_guard lock(mutex_);
    recipes_[sum] = {n, one, other};
  }

  void make(const void* address) {
    std::lock_guard alone(alone_);
    std::uint64_t absence = arena->absence_of(address);
    if (absence == 0) return;
    Recipe recipe = of(address);
    off_the_record = true;
    Operand reads[] = {{recipe.one, Access::Read}, {recipe.other, Access::Read}};
    arena->enter("test::add", reads, Work::Itself);
    auto* made = static_cast<std::uint32_t*>(arena->allocate(recipe.n));
    auto *one = static_cast<const std::uint32_t*>(recipe.one), *other = static_cast<const std::uint32_t*>(recipe.other);
    for (std::size_t i = 0; i < recipe.n / 4; ++i) made[i] = one[i] + other[i];
    arena->exit();
    handed_over_ += arena->hand_over(made, address, absence, keeps);
    arena->release(made);
    off_the_record = false;
  }

  // What is made of it is made, and has no recipe any more.
  void free(const void* address) {
    std::lock_guard alone(alone_);
    for (const void* sum : made_of(address)) {
      while (!arena->forget_recipe(sum) && arena->absence_of(sum) != 0) make(sum);
      Recipe recipe = of(sum);
      {
        std::lock_guard lock(mutex_);
        recipes_.erase(sum);
      }
      arena->unguard(recipe.one), arena->unguard(recipe.other);
    }
  }

  Arena* arena = nullptr;
  bool keeps = false;
  int handed_over() {
    std::lock_guard alone(alone_);
    return handed_over_;
  }

 private:
  struct Recipe {
    std::size_t n;
    const void *one, *other;
  };

  void make_what_is_asked() {
    for (;;) {
      while (sem_wait(&asked_) != 0) {}
      if (const void* address = to_make_.exchange(nullptr)) make(address);
      if (const void* address = to_free_.exchange(nullptr)) free(address);
    }
  }

  Recipe of(const void* sum) {
    std::lock_guard lock(mutex_);
    return recipes_.at(sum);
  }

  std::vector<const void*> made_of(const void* address) {
    std::lock_guard lock(mutex_);
    std::vector<const void*> found;
    for (auto& [sum, recipe] : recipes_) {
      if (recipe.one == address || recipe.other == address) found.push_back(sum);
    }
    return found;
  }

  sem_t asked_;
  std::atomic<const void*> to_make_ = nullptr, to_free_ = nullptr;  // who finds his request gone asks again
  int handed_over_ = 0;
  std::recursive_mutex alone_;  // who asks again finds the work done
  std::mutex mutex_;
  std::unordered_map<const void*, Recipe> recipes_;
};

Maker* maker = nullptr;

Arena& arena_with_maker(std::uint64_t limit) {
  static std::vector<Maker*> makers;  // their threads go on, like the arenas
  makers.push_back(maker = new Maker);
  Options options;
  options.make = [](const void* address) { maker->make(address); };
  options.make_all = [] {};
  options.ask_to_make = [](const void* address, bool to_write) { maker->ask(address, to_write); };
  Arena& arena = make_arena(limit, options);
  maker->arena = &arena;
  return arena;
}

struct Sum {
  std::uint32_t *one, *other, *sum;
  std::size_t n;
};

Sum make_sum(Arena& arena, std::size_t n) {
  Sum made{};
  made.n = n;
  for (std::uint32_t** p : {&made.one, &made.other, &made.sum}) *p = static_cast<std::uint32_t*>(arena.allocate(n));
  fill(made.one, n, 1), fill(made.other, n, 2);
  for (std::size_t i = 0; i < n / 4; ++i) made.sum[i] = made.one[i] + made.other[i];
  maker->learn(made.sum, n, made.one, made.other);
  arena.guard(made.one), arena.guard(made.other);
  CHECK(arena.keep_recipe(made.sum));
  return made;
}

bool is_right(const Sum& s, std::uint32_t more = 0) {
  for (std::size_t i = 0; i < s.n / 4; ++i) {
    if (s.sum[i] != 2 * static_cast<std::uint32_t>(i) * 2654435761u + 3 + more) return false;
  }
  return true;
}

void release(Arena& arena, const Sum& s) {
  maker->free(s.one);
  for (void* p : {s.sum, s.one, s.other}) arena.release(p);
  arena.check_invariants();
  CHECK(arena.counters().live == 0);
}

}  // namespace

TEST(what_has_a_recipe_leaves_without_a_copy_and_is_made_when_it_is_touched) {
  for (std::size_t n : {std::size_t{4096}, 100 * std::size_t{1024}, 2 * kMiB, 9 * kMiB}) {
    Arena& arena = arena_with_maker(0);
    Sum s = make_sum(arena, n);
    CHECK(arena.state(s.sum) == State::Clean && arena.tiers_with(s.sum) == 0);
    arena.check_invariants();
    CHECK(arena.evict(s.sum) >= 0 && arena.state(s.sum) == State::Unmade && arena.unmade() == 1);
    arena.check_invariants();
    CHECK(is_right(s));
    CHECK(arena.state(s.sum) == State::Dirty && arena.unmade() == 0 && maker->handed_over() == 1);
    Counters c = arena.counters();
    CHECK(c.made_anew >= n && c.written[4] == 0);
    release(arena, s);
  }
}

TEST(an_operator_has_what_it_needs_made_on_its_own_thread) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 3 * kMiB);
  maker->keeps = true;
  for (int round = 1; round <= 3; ++round) {
    arena.evict(s.sum);
    CHECK(arena.state(s.sum) == State::Unmade);
    Operand reads[] = {{s.sum, Access::Read}};
    arena.enter("test::read", reads, Work::Itself);
    CHECK(arena.state(s.sum) == State::Clean && maker->handed_over() == round);  // it has its recipe still
    CHECK(is_right(s));
    arena.exit();
    arena.check_invariants();
  }
  CHECK(arena.counters().faults == 0);
  release(arena, s);
}

TEST(a_write_to_what_has_a_recipe_takes_the_recipe_away) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  s.sum[7] += 1;
  CHECK(arena.state(s.sum) == State::Dirty);
  CHECK(arena.evict(s.sum) > 0 && arena.state(s.sum) == State::Absent);  // by a copy
  s.sum[7] -= 1;
  CHECK(is_right(s) && maker->handed_over() == 0);
  release(arena, s);
}

TEST(before_somebody_writes_to_what_a_recipe_reads_its_storage_is_made) {
  for (bool leaves : {true, false}) {
    Arena& arena = arena_with_maker(0);
    Sum s = make_sum(arena, 2 * kMiB);
    if (leaves) arena.evict(s.sum);
    std::memset(s.one, 0, s.n);  // nobody was told
    CHECK(arena.state(s.sum) == State::Dirty && is_right(s) && maker->handed_over() == leaves);
    CHECK(s.one[100] == 0);
    arena.check_invariants();
    release(arena, s);
  }
}

TEST(an_address_that_is_asked_for_is_of_made_contents_and_frees_what_a_recipe_reads) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  CHECK(arena.pin(s.other) == 0);
  s.other[0] = 0;
  CHECK(is_right(s));
  CHECK(arena.pin(s.sum) == 0 && !arena.keep_recipe(s.sum));
  arena.unpin(s.other), arena.unpin(s.sum);
  release(arena, s);
}

TEST(what_a_recipe_reads_may_leave_and_come_back_and_is_read_only_then) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  CHECK(arena.evict(s.one) > 0 && arena.evict(s.other) > 0);
  arena.check_invariants();
  CHECK(arena.fetch(s.one) == 0);
  s.one[3] += 1;  // the sum is made first
  CHECK(is_right(s));
  release(arena, s);
}

TEST(a_result_that_comes_after_another_is_nobodys) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  std::uint64_t absence = arena.absence_of(s.sum);
  CHECK(absence != 0 && is_right(s) && arena.absence_of(s.sum) == 0);
  void* late = arena.allocate(s.n);
  std::memset(late, 1, s.n);
  CHECK(!arena.hand_over(late, s.sum, absence, false));
  CHECK(arena.keep_recipe(s.sum));
  arena.evict(s.sum);
  CHECK(!arena.hand_over(late, s.sum, absence, false));  // nor of a later absence
  arena.release(late);
  CHECK(is_right(s));
  release(arena, s);
}

TEST(a_storage_that_dies_unmade_gives_back_all_it_had) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  arena.release(s.sum);
  CHECK(arena.unmade() == 0);
  arena.unguard(s.one), arena.unguard(s.other);
  s.one[0] = s.other[0] = 1;
  arena.release(s.one), arena.release(s.other);
  arena.check_invariants();
}

TEST(threads_that_read_and_write_see_only_whole_and_right_contents) {
  constexpr int kRounds = 200;
  Arena& arena = arena_with_maker(12 * kMiB);
  Sum s = make_sum(arena, 2 * kMiB);
  maker->keeps = true;
  std::atomic<bool> ends = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!ends) CHECK(is_right(s));
    });
  }
  void* other = arena.allocate(8 * kMiB);
  for (int round = 0; round < kRounds; ++round) {
    arena.evict(s.sum);
    if (round % 3 == 0) std::memset(other, round, 8 * kMiB);  // which leaves no room for all
    if (round % 5 == 0) arena.check_invariants();
  }
  ends = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(maker->handed_over() > 0);
  arena.release(other);
  release(arena, s);
}
