// The step's clock: what a recording holds, and what a schedule does to a step that is like it, and to one that is not.
#include <algorithm>
#include <chrono>
#include <thread>

#include "../core/file_tier.hpp"
#include "check.hpp"
#include "mock_tier.hpp"

using namespace ebbtide;

namespace {

// An operator that reads and writes these, with `inside` in the middle.
template <typename F>
void run(Arena& arena, const char* name, std::vector<Operand> operands, F inside) {
  arena.enter(name, operands, Work::Itself);
  inside();
  arena.exit();
}

void run(Arena& arena, const char* name, std::vector<Operand> operands) {
  run(arena, name, std::move(operands), [] {});
}

const RecordedStorage* storage_of(const Recording& r, std::uint64_t nbytes) {
  auto found = std::ranges::find(r.storages, nbytes, &RecordedStorage::nbytes);
  return found == r.storages.end() ? nullptr : &*found;
}

bool used(const Recording& r, std::uint64_t nbytes, std::uint32_t first, std::uint32_t last, Access access) {
  return std::ranges::any_of(r.uses, [&](const RecordedUse& u) {
    return r.storages[u.storage].nbytes == nbytes && u.first == first && u.last == last && u.access == access;
  });
}

struct Weights {
  Arena& arena;
  void *early, *late;
};

// Two of 4 MiB.
Weights two_weights(std::uint64_t limit) {
  Arena& arena = make_arena(limit);
  void* early = arena.allocate(4 * kMiB);
  return {arena, early, arena.allocate(4 * kMiB)};
}

// A step of eight ticks on two weights: tick 1 uses `early`, 2 to 6 neither, 7 both. An allocation at 2.
void run_step(Arena& arena, void* early, void* late, std::size_t scratch = kMiB) {
  run(arena, "first", {{early}});
  run(arena, "idle", {}, [&] { arena.release(arena.allocate(scratch)); });
  auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  run(arena, "idle", {}, [&] {  // what is evicted is gone by tick 4, however slow the machine
    do pause();
    while (arena.state(early) == State::Writing);
  });
  for (int i = 4; i < 7; ++i) run(arena, "idle", {}, pause);
  run(arena, "last", {{early}, {late}});
}

void step(Arena& arena, void* early, void* late, std::size_t scratch = kMiB) {
  arena.begin_step(true);
  run_step(arena, early, late, scratch);
  arena.end_step();
}

// As a planner would: `early` is away from tick 2, and comes back at tick `back`.
Schedule schedule_of(const Recording& r, std::uint32_t back) {
  Schedule s;
  s.n_ticks = static_cast<std::uint32_t>(r.ticks.size());
  for (const RecordedTick& tick : r.ticks) s.tick_ns.push_back(tick.begin_ns);
  s.tick_ns.push_back(r.time_ns);
  s.headroom.assign(s.n_ticks, 64 * kMiB);
  for (std::uint32_t i = 0; i < r.storages.size(); ++i) {
    const RecordedStorage& storage = r.storages[i];
    s.storages.push_back({.nbytes = storage.nbytes, .serial = storage.serial, .birth = storage.birth, .uses = {}});
    if (storage.allocation != kNever) s.allocations.push_back(i);
  }
  for (const RecordedUse& use : r.uses) s.storages[use.storage].uses.push_back(use.first);
  std::uint32_t early = 0;  // the first weight
  s.commands = {
      {2, Verb::Evict, early, 0, 1, Then::Drop}, {4, Verb::Drop, early, 0, 1}, {back, Verb::Fetch, early, 1, 0, Then::Keep, 4}};
  return s;
}

}  // namespace

TEST(a_recording_holds_every_life_and_every_use) {
  Arena& arena = make_arena(0);
  void* weight = arena.allocate(4 * kMiB);
  void* before = arena.allocate(3 * kMiB);
  void* result = nullptr;
  arena.begin_step(true);
  run(arena, "outer", {{weight, Access::Read}}, [&] {
    run(arena, "inner", {}, [&] { result = arena.allocate(2 * kMiB); });  // what it makes, the outer one fills
    arena.release(arena.allocate(kMiB));
  });
  run(arena, "update", {{weight}, {result, Access::Read}});
  arena.release(before);
  arena.end_step();
  Recording r = arena.tape().take();
  CHECK(r.ticks.size() == 4 && r.names[r.ticks[1].name] == "outer" && r.names[r.ticks[2].name] == "inner");
  CHECK(storage_of(r, 4 * kMiB)->birth == kNever && storage_of(r, 4 * kMiB)->death == kNever);
  CHECK(storage_of(r, 3 * kMiB)->birth == kNever && storage_of(r, 3 * kMiB)->death == 4);
  CHECK(storage_of(r, 2 * kMiB)->birth == 2 && storage_of(r, 2 * kMiB)->allocation == 0);
  CHECK(storage_of(r, kMiB)->scratch && storage_of(r, kMiB)->birth == 2 && storage_of(r, kMiB)->death == 3);
  CHECK(!storage_of(r, 2 * kMiB)->scratch);
  CHECK(used(r, 4 * kMiB, 1, 2, Access::Read) && used(r, 4 * kMiB, 3, 3, Access::ReadWrite));
  CHECK(used(r, 2 * kMiB, 2, 2, Access::Write) && used(r, 2 * kMiB, 3, 3, Access::Read));
  CHECK(arena.tape().take().ticks.empty());
  arena.release(weight);
  arena.release(result);
}

TEST(what_is_born_on_the_steps_thread_has_the_line_that_was_told_last) {
  Arena& arena = make_arena(0);
  Tape& tape = arena.tape();
  tape.at_line("before.py:1");  // in no step: nothing
  CHECK(!tape.records_here());
  void* before = arena.allocate(5 * kMiB);
  arena.begin_step(true);
  CHECK(tape.records_here());
  tape.at_line("train.py:7 forward");
  void* here = arena.allocate(4 * kMiB);
  void* elsewhere = nullptr;
  std::thread([&] {
    CHECK(!tape.records_here());
    tape.at_line("thread.py:1");
    elsewhere = arena.allocate(3 * kMiB);
  }).join();
  tape.at_line("");
  void* after = arena.allocate(2 * kMiB);
  arena.end_step();
  Recording r = tape.take();
  CHECK(r.names[storage_of(r, 4 * kMiB)->line] == "train.py:7 forward");
  for (std::size_t mib : {5, 3, 2}) CHECK(r.names[storage_of(r, mib * kMiB)->line].empty());
  for (void* each : {before, here, elsewhere, after}) arena.release(each);
}

TEST(a_step_like_the_recorded_one_follows_its_schedule) {
  auto [arena, early, late] = two_weights(0);
  step(arena, early, late);
  CHECK(arena.schedules().load(schedule_of(arena.tape().take(), 4)) == 0);
  for (int i = 0; i < 3; ++i) {
    step(arena, early, late);
    CHECK(arena.schedules().followed() == 0u);
  }
  Counters c = arena.counters();
  CHECK(c.evicted[4] == 3 * 4 * kMiB && c.fetched[4] == 3 * 4 * kMiB && c.faults == 0);
  CHECK(c.stall_ns[static_cast<std::size_t>(Stall::DemandFetch)] == 0);
}

TEST(what_has_gone_of_a_schedule_is_counted) {
  auto [arena, early, late] = two_weights(0);
  step(arena, early, late);
  arena.schedules().load(schedule_of(arena.tape().take(), 4));
  step(arena, early, late);
  CHECK(arena.schedules().followed() == 0u && arena.schedules().gone() == 0);
  arena.release(late);
  late = arena.allocate(4 * kMiB);  // in its place, as a state that is loaded
  step(arena, early, late);
  CHECK(arena.schedules().followed() == 0u && arena.schedules().gone() == 1);
  step(arena, early, late);
  CHECK(arena.schedules().gone() == 1);
}

TEST(a_step_that_evaluates_before_it_trains_follows_its_schedule_from_there) {
  auto [arena, early, late] = two_weights(0);
  step(arena, early, late);
  CHECK(arena.schedules().load(schedule_of(arena.tape().take(), 4)) == 0);
  auto look = [&](Pass pass, std::size_t scratch) {
    arena.enter("look", std::vector<Operand>{{early, Access::Read}}, Work::Itself, pass);
    arena.tape().describe("[[1024], 0.1]", Phase::Other);
    void* made = arena.allocate(scratch);
    arena.exit();
    arena.release(made);
  };
  auto trains = [&] { run_step(arena, early, late); };
  // Twice with gradients off, and what gathers the answers between them; then the step begins anew.
  arena.begin_step(true);
  look(Pass::Evaluates, 3 * kMiB);
  look(Pass::Computes, 2 * kMiB);
  look(Pass::Evaluates, 3 * kMiB);
  trains();
  arena.end_step();
  CHECK(arena.schedules().followed() == 0u);
  Recording r = arena.tape().take();
  CHECK(r.calls.size() == 1);  // an evaluation may go on for hours, with other numbers in each call
  CHECK(r.ticks.size() == 8 && storage_of(r, 3 * kMiB) == nullptr && used(r, 4 * kMiB, 1, 1, Access::ReadWrite));
  // What comes when something has trained is the step's own, and so is what the schedule has not been lost for.
  arena.begin_step(true);
  arena.enter("backward", {}, Work::Itself, Pass::Trains);
  arena.exit();
  look(Pass::Evaluates, 3 * kMiB);
  trains();
  arena.end_step();
  CHECK(!arena.schedules().followed());
  CHECK(arena.tape().take().ticks.size() == 8 + 2);
  arena.begin_step(true);
  arena.enter("average", {}, Work::Itself, Pass::Evaluates);
  arena.exit();
  trains();
  arena.end_step();
  CHECK(arena.schedules().followed() == 0u);
  CHECK(arena.tape().take().ticks.size() == 8 + 1);
}

TEST(a_schedule_moves_contents_between_all_tiers_and_drops_them_where_it_says) {
  Tiers::List tiers;
  tiers.push_back(std::make_unique<MockTier>(Behaviour{}));
  tiers.push_back(std::make_unique<MockTier>(Behaviour{}));
  auto* near = static_cast<MockTier*>(tiers[0].get());
  auto* far = static_cast<MockTier*>(tiers[1].get());
  Arena& arena = make_arena(0, {}, std::move(tiers));
  void* early = arena.allocate(4 * kMiB);
  void* late = arena.allocate(4 * kMiB);
  fill(early, 4 * kMiB, 3);
  const RankSet expected[8] = {0, bit(0), bit(1), bit(1) | bit(2), bit(2), bit(1) | bit(2), bit(0) | bit(1), bit(0)};
  bool seen[8]{};
  auto has = [&](RankSet ranks) {
    bool fast = arena.state(early) != State::Absent && arena.state(early) != State::Reading;
    return (arena.tiers_with(early) | (fast ? bit(kFast) : RankSet{0})) == ranks;
  };
  auto run_step = [&](int tries) {
    arena.begin_step(true);
    for (int tick = 1; tick < 8; ++tick) {
      std::vector<Operand> operands;
      if (tick == 1 || tick == 7) operands.push_back({early, Access::Read});
      if (tick == 7) operands.push_back({late});
      run(arena, "operator", operands, [&] {
        seen[tick] = false;
        for (int wait = 0; wait < tries && !(seen[tick] = has(expected[tick])); ++wait) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      });
    }
    arena.end_step();
  };
  run_step(0);
  Schedule s = schedule_of(arena.tape().take(), 6);
  s.commands = {{2, Verb::Evict, 0, 0, 1, Then::Drop},
                {3, Verb::Drop, 0, 0, 1},
                {3, Verb::Evict, 0, 1, 2},
                {4, Verb::Drop, 0, 1},
                {5, Verb::Fetch, 0, 2, 1},
                {6, Verb::Fetch, 0, 1, 0, Then::Keep, 3},
                {6, Verb::Drop, 0, 2},
                {7, Verb::Drop, 0, 1}};
  arena.schedules().load(s);
  run_step(1000);
  CHECK(arena.schedules().followed() == 0u && filled(early, 4 * kMiB, 3));
  for (int tick = 1; tick < 8; ++tick) CHECK(seen[tick]);
  CHECK(near->space().used == 0 && far->space().used == 0);  // where it is dropped last, memory alone has it
  CHECK(near->writes == 2 && near->reads == 2 && far->writes == 1 && far->reads == 1);
  Recording r = arena.tape().take();
  auto moved = [&](Rank source, Rank target) {
    return std::ranges::count_if(
        r.spans, [&](auto& span) { return span.lane <= Lane::Back && span.source == source && span.target == target; });
  };
  CHECK(moved(0, 1) == 1 && moved(1, 2) == 1 && moved(2, 1) == 1 && moved(1, 0) == 1);
  arena.check_invariants();
  s.commands[0].target = 3;
  CHECK(!refusal_of<std::invalid_argument>([&] { arena.schedules().load(s); }).empty());
}

namespace {
// Whether a fetch that came late is under way a tick earlier in the next step, where the plan leaves so much room there.
bool starts_earlier(std::uint64_t room) {
  Arena& arena = make_arena(0);
  void* early = arena.allocate(16 * kMiB);
  void* late = arena.allocate(4 * kMiB);
  bool under_way = false;
  auto run_step = [&] {
    arena.begin_step(true);
    run(arena, "first", {{early}});
    run(arena, "idle", {}, [&] { arena.release(arena.allocate(kMiB)); });
    run(arena, "idle", {}, [&] { arena.evict(early); });  // surely gone at tick 4, the earliest for the fetch
    for (int i = 4; i < 7; ++i) run(arena, "idle", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    under_way = arena.state(early) != State::Absent;
    run(arena, "last", {{early}, {late}});
    arena.end_step();
  };
  run_step();
  Schedule s = schedule_of(arena.tape().take(), 7);  // with the operator that needs it
  s.headroom.assign(s.n_ticks, 64 * kMiB);
  s.headroom[6] = room;
  arena.schedules().load(s);
  run_step();
  CHECK(!under_way && arena.counters().stall_ns[static_cast<std::size_t>(Stall::LatePrefetch)] > 0);
  run_step();
  arena.check_invariants();
  return under_way;
}
}  // namespace

TEST(a_fetch_that_came_late_starts_earlier_next_time_where_the_plan_leaves_room) {
  CHECK(starts_earlier(16 * kMiB));
  CHECK(!starts_earlier(15 * kMiB));
}

TEST(a_step_that_allocates_otherwise_goes_on_in_demand_mode_or_by_another_schedule) {
  auto [arena, early, late] = two_weights(0);
  step(arena, early, late, kMiB);
  arena.schedules().load(schedule_of(arena.tape().take(), 4));
  step(arena, early, late, 2 * kMiB);
  CHECK(!arena.schedules().followed().has_value());
  CHECK(arena.schedules().load(schedule_of(arena.tape().take(), 4)) == 1);
  step(arena, early, late, kMiB);
  CHECK(arena.schedules().followed() == 0u);
  step(arena, early, late, 2 * kMiB);
  CHECK(arena.schedules().followed() == 1u);
  arena.begin_step();
  arena.end_step();
  CHECK(!arena.schedules().followed().has_value());  // it ended too soon
  arena.schedules().unload(0);
  step(arena, early, late, kMiB);
  CHECK(!arena.schedules().followed().has_value());
  step(arena, early, late, 2 * kMiB);
  CHECK(arena.schedules().followed() == 1u);  // the other stays, under its number
  arena.begin_step(true);
  arena.end_step();
  step(arena, early, late, kMiB);
  CHECK(arena.schedules().load(schedule_of(arena.tape().take(), 4)) == 0);  // which is given again
  step(arena, early, late, kMiB);
  CHECK(arena.schedules().followed() == 0u);
  arena.schedules().unload(0);
  arena.schedules().unload(1);
  step(arena, early, late, 2 * kMiB);
  CHECK(!arena.schedules().followed().has_value());
  arena.schedules().unload();
  step(arena, early, late);
  CHECK(!arena.schedules().followed().has_value());
}

TEST(a_storage_wanted_back_while_it_is_being_written_stays_and_can_be_written_to) {
  Arena& arena = make_arena(0);
  auto* early = static_cast<char*>(arena.allocate(64 * kMiB));
  void* late = arena.allocate(4 * kMiB);
  step(arena, early, late);
  Schedule s = schedule_of(arena.tape().take(), 4);
  s.commands[0].tick = s.commands[1].tick = 4;
  arena.schedules().load(s);
  for (int i = 0; i < 3; ++i) {
    arena.begin_step();
    run(arena, "first", {{early}}, [&] { early[5] = static_cast<char>(i); });
    run(arena, "idle", {}, [&] { arena.release(arena.allocate(kMiB)); });
    for (int tick = 3; tick < 7; ++tick) run(arena, "idle", {});
    run(arena, "last", {{early}, {late}}, [&] { early[7] = static_cast<char>(early[5] + 1); });
    arena.end_step();
    CHECK(early[5] == i && early[7] == i + 1);
  }
  CHECK(arena.counters().cancelled > 0);
}

TEST(what_the_decider_took_from_a_schedule_comes_back_before_its_use) {
  auto [arena, early, late] = two_weights(12 * kMiB);
  bool was_taken = false, under_way = false;
  auto run_step = [&](std::size_t unplanned) {
    arena.begin_step(true);
    run(arena, "first", {{early}});
    run(arena, "idle", {}, [&] { arena.release(arena.allocate(kMiB)); });
    std::thread([&] { arena.release(arena.allocate(unplanned)); }).join();  // no allocation of the step's
    was_taken = arena.state(late) == State::Absent;
    for (int i = 3; i < 7; ++i) run(arena, "idle", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    under_way = arena.state(late) != State::Absent;
    run(arena, "last", {{early}, {late}});
    arena.end_step();
  };
  run_step(kMiB);
  Schedule s = schedule_of(arena.tape().take(), 4);
  s.commands.clear();  // nothing moves
  arena.schedules().load(s);
  run_step(12 * kMiB);
  CHECK(was_taken && under_way && arena.schedules().followed().has_value());
  CHECK(arena.counters().stall_ns[static_cast<std::size_t>(Stall::DemandFetch)] == 0);
}

TEST(a_schedule_that_does_not_hold_together_is_refused) {
  auto [arena, early, late] = two_weights(0);
  step(arena, early, late);
  Schedule good = schedule_of(arena.tape().take(), 4);
  auto refused = [&](auto spoil) {
    Schedule bad = good;
    spoil(bad);
    return !refusal_of<std::invalid_argument>([&] { arena.schedules().load(bad); }).empty();
  };
  CHECK(refused([](Schedule& s) { s.commands[0].storage = 99; }));
  CHECK(refused([](Schedule& s) { s.commands[1].tick = 99; }));
  CHECK(refused([](Schedule& s) { std::swap(s.commands[0], s.commands[1]); }));
  CHECK(refused([](Schedule& s) { s.commands[1].target = kFast; }));
  CHECK(refused([](Schedule& s) { s.tick_ns.pop_back(); }));
  CHECK(refused([](Schedule& s) { s.headroom.pop_back(); }));
  CHECK(refused([](Schedule& s) { s.allocations.push_back(99); }));
  CHECK(!refused([](Schedule&) {}));
}

TEST(prefetches_stand_back_for_who_waits_for_room) {
  auto [arena, early, late] = two_weights(12 * kMiB);
  step(arena, early, late);
  arena.schedules().load(schedule_of(arena.tape().take(), 4));
  for (int i = 0; i < 20; ++i) {
    arena.begin_step();
    run(arena, "first", {{early}});
    run(arena, "idle", {}, [&] { arena.release(arena.allocate(kMiB)); });
    for (int tick = 3; tick < 7; ++tick) {
      run(arena, "greedy", {}, [&] { arena.release(arena.allocate(8 * kMiB)); });
    }
    run(arena, "last", {{early}, {late}});
    arena.end_step();
  }
  CHECK(!arena.counters().over_budget && arena.counters().reserved_peak <= 12 * kMiB);
}
