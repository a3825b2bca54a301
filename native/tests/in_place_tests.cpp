// Tiers that are used in place: pages go there and come back, under whoever uses them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "../core/file_tier.hpp"
#include "mock_tier.hpp"

using namespace ebbtide;

namespace {

// Such a tier, and behind it a file.
struct Ground {
  explicit Ground(std::uint64_t limit, const Behaviour& behaviour = {}) {
    Tiers::List tiers;
    tiers.push_back(std::make_unique<MockMemory>(behaviour));
    memory = static_cast<MockMemory*>(tiers[0].get());
    tiers.push_back(std::make_unique<FileTier>(std::vector<std::string>{spill_directory()}));
    arena = &make_arena(limit, {}, std::move(tiers));
  }
  char* filled_block(std::size_t bytes, unsigned seed) const { return ::filled_block(*arena, bytes, seed); }
  MockMemory* memory;
  Arena* arena;
};

constexpr RankSet kInMemory = bit(1), kInFile = bit(2);

}  // namespace

TEST(what_is_used_in_place_is_read_and_written_there_without_a_fault) {
  Ground ground(0);
  Arena& arena = *ground.arena;
  char* p = ground.filled_block(6 * kMiB + 4096, 1);
  CHECK(arena.evict(p) == 8 * kMiB && arena.tiers_with(p) == kInMemory && arena.state(p) == State::Dirty);
  CHECK(ground.memory->taken == 8 * kMiB && arena.counters().reserved < 8 * kMiB && arena.counters().elsewhere == 8 * kMiB);
  CHECK(filled(p, 6 * kMiB + 4096, 1));
  fill(p, 6 * kMiB + 4096, 2);
  const Operand operand[] = {{p}};
  arena.enter("operator", operand, Work::Itself);
  arena.exit();
  Counters c = arena.counters();
  CHECK(c.faults == 0 && arena.tiers_with(p) == kInMemory);
  CHECK(c.evicted == c.written && std::ranges::max(c.written) == 6 * kMiB + 4096);  // contents went there
  arena.check_invariants();
  CHECK(arena.fetch(p) == 0 && arena.tiers_with(p) == 0 && ground.memory->space().used == 0 &&
        ground.memory->given_back == 8 * kMiB);
  CHECK(filled(p, 6 * kMiB + 4096, 2) && arena.counters().elsewhere == 0);
  arena.release(p);
}

TEST(what_dies_in_place_gives_its_pages_to_the_kernel) {
  Ground ground(0);
  Arena& arena = *ground.arena;
  for (std::size_t bytes : {8 * kMiB, std::size_t{40} * 1024}) {
    char* p = ground.filled_block(bytes, 1);
    CHECK(arena.evict(p) > 0 && ground.memory->space().used > 0);
    std::uint64_t cached = arena.counters().reserved;
    arena.release(p);
    CHECK(ground.memory->space().used == 0 && arena.counters().elsewhere == 0 && arena.counters().reserved == cached);
    arena.check_invariants();
  }
}

TEST(what_lies_in_place_goes_on_to_the_file_and_comes_back_from_there) {
  Ground ground(0);
  Arena& arena = *ground.arena;
  char* p = ground.filled_block(8 * kMiB, 3);
  CHECK(arena.evict(p) > 0 && arena.evict(p, 2) > 0);
  CHECK(arena.state(p) == State::Absent && arena.tiers_with(p) == kInFile && ground.memory->space().used == 0);
  arena.check_invariants();
  CHECK(filled(p, 8 * kMiB, 3) && arena.state(p) == State::Clean && arena.counters().faults > 0);
  // A clean one goes where it can be used rather than back to the file.
  CHECK(arena.evict(p) > 0 && arena.state(p) == State::Clean && arena.tiers_with(p) == (kInMemory | kInFile));
  CHECK(filled(p, 8 * kMiB, 3));
  p[5] = 7;  // the file's bytes are not these any more
  CHECK(arena.state(p) == State::Dirty && arena.tiers_with(p) == kInMemory);
}

TEST(where_there_is_no_room_in_place_the_next_tier_takes_over) {
  Ground ground(0, {.capacity = 8 * kMiB});
  Arena& arena = *ground.arena;
  char *first = ground.filled_block(8 * kMiB, 1), *second = ground.filled_block(8 * kMiB, 2);
  CHECK(arena.evict(first) > 0 && arena.tiers_with(first) == kInMemory);
  CHECK(arena.evict(second) > 0 && arena.tiers_with(second) == kInFile);
  CHECK(filled(first, 8 * kMiB, 1) && filled(second, 8 * kMiB, 2));
}

TEST(pages_that_cannot_move_stay_or_go_to_the_file_and_what_has_them_is_whole) {
  Ground ground(0, {.write_errors = 1.0});
  Arena& arena = *ground.arena;
  char* p = ground.filled_block(12 * kMiB, 1);
  CHECK(arena.evict(p) > 0 && arena.tiers_with(p) == kInFile && ground.memory->space().used == 0);
  arena.check_invariants();
  CHECK(filled(p, 12 * kMiB, 1));
  ground.memory->behaviour.write_errors = 0.0;
  ground.memory->behaviour.read_errors = 1.0;
  CHECK(arena.evict(p) > 0 && arena.tiers_with(p) == (kInMemory | kInFile));
  CHECK(arena.fetch(p) == 0 && arena.tiers_with(p) == (kInMemory | kInFile) && filled(p, 12 * kMiB, 1));
  arena.check_invariants();
  arena.release(p);
  CHECK(ground.memory->space().used == 0 && arena.counters().live == 0);
}

TEST(what_dies_while_its_pages_move_leaves_nothing) {
  Ground ground(0, {.ns_per_mib = 3'000'000});
  Arena& arena = *ground.arena;
  for (bool back : {false, true}) {
    char* p = ground.filled_block(16 * kMiB, 1);
    if (back) CHECK(arena.evict(p) > 0);
    std::thread mover([&] { back ? static_cast<void>(arena.fetch(p)) : static_cast<void>(arena.evict(p)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    arena.release(p);
    mover.join();
    while (ground.memory->space().used > 0) std::this_thread::yield();
    CHECK(arena.counters().elsewhere == 0);
    arena.check_invariants();
  }
}

TEST(a_budget_is_kept_by_moving_to_memory_that_is_used_in_place) {
  Ground ground(16 * kMiB);
  Arena& arena = *ground.arena;
  std::vector<char*> blocks;
  for (unsigned i = 0; i < 8; ++i) blocks.push_back(ground.filled_block(4 * kMiB, i));
  Counters c = arena.counters();
  CHECK(c.reserved_peak <= 16 * kMiB && c.message.empty() && ground.memory->space().used >= 16 * kMiB);
  for (unsigned i = 0; i < 8; ++i) CHECK(filled(blocks[i], 4 * kMiB, i));
  CHECK(arena.counters().faults == 0 && arena.tiers_with(blocks[0]) == kInMemory);
  for (char* p : blocks) arena.release(p);
}

TEST(what_is_used_in_place_comes_when_there_is_room_unless_the_policy_leaves_it) {
  for (const char* name : {"demand", "first-touch"}) {
    Ground ground(16 * kMiB);
    Arena& arena = *ground.arena;
    arena.set_policy(*find_policy(name));
    char *first = ground.filled_block(8 * kMiB, 1), *second = ground.filled_block(8 * kMiB, 2);
    CHECK(arena.evict(first) > 0);
    const Operand operand[] = {{first, Access::Read}};
    arena.enter("operator", operand, Work::Itself);
    CHECK(arena.tiers_with(first) == kInMemory);
    arena.exit();
    bool comes = std::string(name) == "demand";
    for (int tries = 0; comes && arena.tiers_with(first) != 0 && tries < 1000; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(arena.tiers_with(first) == (comes ? 0 : kInMemory));
    CHECK(filled(first, 8 * kMiB, 1) && filled(second, 8 * kMiB, 2));
  }
}

TEST(under_first_touch_what_finds_no_room_is_born_in_place_and_stays_there) {
  Ground ground(16 * kMiB);
  Arena& arena = *ground.arena;
  arena.set_policy(*find_policy("first-touch"));
  char *first = ground.filled_block(12 * kMiB, 1), *second = ground.filled_block(12 * kMiB, 2);
  CHECK(arena.tiers_with(first) == 0 && arena.tiers_with(second) == kInMemory);
  CHECK(arena.counters().reserved_peak <= 16 * kMiB);
  arena.release(first);
  CHECK(arena.tiers_with(second) == kInMemory && filled(second, 12 * kMiB, 2));
}

TEST(a_forked_child_reads_what_lies_in_place_and_its_pages_stay_while_it_may) {
  Ground ground(0);
  Arena& arena = *ground.arena;
  char* p = ground.filled_block(8 * kMiB, 1);
  CHECK(arena.evict(p) > 0);
  CHECK(in_child([&] { return filled(p, 8 * kMiB, 1); }));
  CHECK(arena.fetch(p) == 0 && arena.tiers_with(p) == kInMemory);  // not moved: a child may share them
  CHECK(arena.evict(p, 2) > 0 && arena.tiers_with(p) == kInFile && arena.fetch(p) == 0 && arena.evict(p) > 0);
  CHECK((arena.tiers_with(p) & kInMemory) != 0 && filled(p, 8 * kMiB, 1));
}

// Several threads write while the pages go and come.
TEST(writes_while_pages_move_are_not_lost) {
  Ground ground(0);
  Arena& arena = *ground.arena;
  constexpr std::size_t kBytes = 8 * kMiB;
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(ground.filled_block(kBytes, 0));
  for (std::size_t i = 0; i < kBytes / 8; i += 512) words[i] = 0;
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> rounds = 0;
  std::thread writer([&] {
    while (!stop) {
      for (std::size_t i = 0; i < kBytes / 8; i += 512) ++words[i];
      ++rounds;
    }
  });
  for (int i = 0; i < 50 || rounds < 20; ++i) CHECK(arena.evict(words) > 0 && arena.fetch(words) == 0);
  stop = true;
  writer.join();
  for (std::size_t i = 0; i < kBytes / 8; i += 512) CHECK(words[i] == rounds);
  CHECK(arena.counters().cancelled == 0 && arena.counters().faults == 0);
}

// A schedule of a step of four ticks in which the weight of before the step is used in place, and so is what is born at tick 1.
TEST(a_schedule_has_storages_begin_in_place_and_moves_them_where_it_says) {
  Ground ground(0);
  Arena& arena = *ground.arena;
  char *weight = ground.filled_block(4 * kMiB, 1), *other = ground.filled_block(6 * kMiB, 2);
  RankSet weight_lies[4]{}, born_lies[4]{};
  auto step = [&] {
    char* born = nullptr;
    arena.begin_step(true);
    for (int tick = 1; tick < 4; ++tick) {
      const Operand operands[] = {{weight}, {other, Access::Read}};
      arena.enter("operator", operands, Work::Itself);
      if (tick == 1) born = ground.filled_block(8 * kMiB, 3);
      for (int tries = 0; tick == 3 && (arena.tiers_with(weight) & kInMemory) != 0 && tries < 1000 && ground.memory->taken > 0;
           ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      weight_lies[tick] = arena.tiers_with(weight), born_lies[tick] = arena.tiers_with(born);
      CHECK(filled(born, 8 * kMiB, 3) && filled(weight, 4 * kMiB, 1));
      arena.exit();
    }
    arena.release(born);
    arena.end_step();
  };
  step();
  CHECK(weight_lies[3] == 0 && born_lies[3] == 0);
  Recording r = arena.tape().take();
  Schedule s;
  s.n_ticks = static_cast<std::uint32_t>(r.ticks.size());
  for (const RecordedTick& tick : r.ticks) s.tick_ns.push_back(tick.begin_ns);
  s.tick_ns.push_back(r.time_ns);
  s.headroom.assign(s.n_ticks, 64 * kMiB);
  std::uint32_t number = 0;
  for (std::uint32_t i = 0; i < r.storages.size(); ++i) {
    const RecordedStorage& storage = r.storages[i];
    bool begins = storage.nbytes != 6 * kMiB;
    s.storages.push_back({storage.nbytes, storage.serial, storage.birth, {}, begins ? Rank{1} : kFast});
    if (storage.allocation != kNever) s.allocations.push_back(i);
    if (storage.nbytes == 4 * kMiB) number = i;
  }
  s.commands = {{2, Verb::Fetch, number, 1, 0}};
  Schedule nowhere = s;
  nowhere.storages[0].begins = 7;
  CHECK(!refusal_of<std::invalid_argument>([&] { arena.schedules().load(nowhere); }).empty());
  arena.schedules().load(s);
  for (int i = 0; i < 2; ++i) {
    step();
    CHECK(arena.schedules().followed() == 0u && born_lies[1] == kInMemory && born_lies[3] == kInMemory && weight_lies[3] == 0);
  }
  CHECK(arena.tiers_with(other) == 0 && arena.counters().faults == 0 && ground.memory->taken >= 2 * (8 + 4) * kMiB);
  CHECK(ground.memory->space().used == 0);
}
