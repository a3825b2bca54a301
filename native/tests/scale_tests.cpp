// Many storages: memory areas do not run out, and finding victims does not mean looking at all of them.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"

using namespace ebbtide;

namespace {

constexpr std::size_t kSize = 4096;

unsigned& word(void* p) { return static_cast<unsigned*>(p)[kSize / sizeof(unsigned) - 1]; }

std::vector<void*> storages(Arena& arena, unsigned count) {
  std::vector<void*> all;
  for (unsigned i = 0; i < count; ++i) {
    all.push_back(arena.allocate(kSize));
    word(all.back()) = i;
  }
  return all;
}

// Enough that every other one away, each an area or three, would be several times what may be.
constexpr unsigned kCount = 8'000;
constexpr std::uint64_t kMostAreas = 2'000;

// Who comes back waits at an eighth more than the arena's share, and parts up to four more. The share is a quarter at least.
std::uint64_t at_most(const Options& options) {
  std::uint64_t share = std::max(kMostAreas, options.most_areas / 4);
  return share + share / 8 + 4;
}

Options few_areas() {  // kMostAreas for the arena, whatever this process has already
  Options options;
  options.most_areas = (memory_areas() + kMostAreas) * 4 / 3;
  return options;
}

}  // namespace

TEST(every_other_of_many_storages_is_evicted_as_long_as_there_are_memory_areas_and_the_rest_is_kept) {
  Options options = few_areas();
  Arena& arena = make_arena(0, options);
  auto all = storages(arena, kCount);
  std::uint64_t evicted = 0, kept = 0;
  for (unsigned i = 0; i < kCount; i += 2) (arena.evict(all[i]) > 0 ? evicted : kept) += 1;
  CHECK(evicted > 300);
  CHECK(kept > 300);
  CHECK(memory_areas() < options.most_areas);
  for (unsigned i = 0; i < kCount; ++i) arena.evict(all[i]);  // beside one that is away nothing stands in the way
  CHECK(memory_areas() < options.most_areas);
  arena.check_invariants();
  std::mt19937 random(3);
  std::size_t most = 0;
  for (unsigned i = 0; i < 3'000; ++i) {  // those that are read lie scattered, and as many as there are areas for
    unsigned which = static_cast<unsigned>(random()) % kCount;
    CHECK(word(all[which]) == which);
    if (random() % 4 == 0) word(all[which]) = which;  // a write
    if (i % 100 == 0) most = std::max(most, memory_areas());
  }
  CHECK(most < options.most_areas);
  CHECK(arena.counters().areas <= at_most(options));
  for (unsigned i = 0; i < kCount; ++i) CHECK(word(all[i]) == i);
  CHECK(!arena.counters().over_budget);
  arena.check_invariants();
  for (unsigned i = 0; i < kCount; i += 2) arena.release(all[i]);  // what dies scattered parts areas, too
  CHECK(arena.counters().areas <= at_most(options));
  for (unsigned i = 1; i < kCount; i += 2) arena.release(all[i]);
}

TEST(what_is_large_leaves_where_areas_are_too_few_for_what_is_small) {
  Options options = few_areas();
  Arena& arena = make_arena(0, options);
  auto all = storages(arena, kCount);
  char* large = filled_block(arena, kMiB, 7);
  for (unsigned i = 0; i < kCount; i += 2) arena.evict(all[i]);
  CHECK(arena.evict(all[1]) > 0);  // between two that are away
  auto kept = std::ranges::find_if(all, [&](void* p) { return arena.evict(p) == 0; });
  CHECK(kept != all.end());
  CHECK(arena.evict(large) > 0 && filled(large, kMiB, 7));
  for (unsigned i = 0; i < kCount; ++i) CHECK(word(all[i]) == i);
}

TEST(over_budget_for_want_of_memory_areas_says_which_limit_to_raise) {
  constexpr std::size_t kPart = kMiB / 2;
  Options options;
  options.most_areas = 16;  // so few that they have run out before it begins
  Arena& arena = make_arena(2 * kHugePage, options);
  CHECK(arena.pin(arena.allocate(kHugePage)) == 0);
  void* all[5];
  for (unsigned i = 0; i < 4; ++i) fill(all[i] = arena.allocate(kPart), kPart, i);  // side by side, one area
  for (unsigned i : {0, 2, 3}) CHECK(arena.pin(all[i]) == 0);
  fill(all[4] = arena.allocate(kPart), kPart, 4);  // the one that is not pinned would part the others
  Counters c = arena.counters();
  CHECK(arena.state(all[1]) == State::Dirty && c.over_budget && c.reserved_peak > 2 * kHugePage);
  CHECK(c.message.find("sysctl vm.max_map_count=") != std::string::npos);
  arena.unpin(all[2]);
  arena.unpin(all[3]);
  for (unsigned i : {4, 3, 2, 1}) {  // from the edge on they part nothing
    arena.evict(all[i]);  // unless the governor, which wakes while it is over budget, was faster
    CHECK(arena.state(all[i]) == State::Absent);
  }
  for (unsigned i = 0; i < 5; ++i) CHECK(filled(all[i], kPart, i));
}

TEST(the_least_recently_used_leave_and_few_are_looked_at_for_each) {
  constexpr unsigned kMany = 8'000, kLeave = 1'000;
  Arena& arena = make_arena(0);
  arena.set_policy(*find_policy("lru"));
  auto all = storages(arena, kMany);
  std::mt19937 random(5);
  std::vector<unsigned> order(kMany);  // by last use
  for (unsigned i = 0; i < kMany; ++i) order[i] = i;
  std::ranges::shuffle(order, random);
  auto use = [&](unsigned i) {
    const Operand operands[] = {{all[i], Access::Read}};
    arena.enter("use", operands, Work::Itself);
    arena.exit();
  };
  for (unsigned i : order) use(i);
  std::uint64_t looked = arena.counters().looked_at;
  arena.set_limits(std::uint64_t{kMany} * kSize, 0);
  for (unsigned i = 0; i < kLeave; ++i) {
    all.push_back(arena.allocate(kSize));
    if (i % 3 == 0 && i < kLeave / 2) {  // one that stands ready to be evicted is used first
      unsigned next = order[i + 10];
      use(next);
      order.push_back(next);
      order[i + 10] = kMany;
    }
  }
  looked = arena.counters().looked_at - looked;
  std::uint64_t gone = 0;
  bool in_order = true, still_here = false;
  for (unsigned i : order) {
    if (i == kMany) continue;
    bool away = arena.state(all[i]) == State::Absent || arena.state(all[i]) == State::Writing;
    gone += away ? 1 : 0;
    in_order = in_order && !(away && still_here);
    still_here = still_here || !away;
  }
  std::printf("  %llu left, %.0f looked at for each\n", static_cast<unsigned long long>(gone),
              static_cast<double>(looked) / static_cast<double>(gone));
  CHECK(in_order && gone >= kLeave - kHugePage / kSize && gone <= kLeave + kHugePage / kSize);
  CHECK(looked < gone * 3 * kLooksPerVictim);  // where all would be looked at, kMany for each
  CHECK(!arena.counters().over_budget);
}
