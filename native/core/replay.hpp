// Schedules, carried out. A schedule belongs to steps that allocate alike: the sizes of the arena's allocations on the
// step's thread, in their order, are compared as the step goes along, and ticks are set right at each of them. At the
// first that differs another schedule that agrees with the whole step so far takes over, else the step goes on in
// demand mode. What is wrong here costs time, never a number.
// Guarded by the arena's mutex. Only load(), on_allocate() and end() allocate memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "block_table.hpp"
#include "command.hpp"
#include "recording.hpp"
#include "types.hpp"

namespace ebbtide {

struct ScheduledStorage {
  std::uint64_t nbytes;
  std::uint64_t serial = 0;  // of the allocation when the schedule was made, if it lived across the step's end
  std::uint32_t birth = kNever;  // clock of its allocation, if it has one
  std::vector<std::uint32_t> uses;  // ticks, ascending
  Rank begins = kFast;  // the fastest tier that has it when it is born, or at tick 0
  // The tick of the operator that makes it, whose call is to be kept: it leaves fast memory without a copy later, and is made anew
  // for its next use [Note: recipes].
  std::uint32_t maker = kNever;
  bool ingredient = false;  // or it dies, or is away, before what is made of it is made anew: that makes it, too
};

struct Schedule {
  std::uint32_t n_ticks = 0;
  std::vector<std::int64_t> tick_ns;  // when each tick begins, n_ticks + 1 of them
  std::vector<std::uint64_t> headroom;  // bytes of the budget that the plan leaves free at each tick
  std::vector<ScheduledStorage> storages;
  std::vector<std::uint32_t> allocations;  // storages in the order of the clock
  std::vector<Command> commands;  // by tick
};

// A block that may have died since.
struct Bound {
  BlockId id = kNoBlock;
  std::uint32_t generation = 0;
};

class Replay {
 public:
  Replay(BlockTable& blocks, Rank slowest) : blocks_(blocks), slowest_(slowest) {}

  // Returns the schedule's number. Throws std::invalid_argument when it refers to what it does not have.
  std::size_t load(Schedule schedule);
  void unload(std::size_t number);  // the next one that is loaded may get its number
  void unload();  // all of them
  bool active() const { return active_.has_value(); }
  bool lost() const { return !scripts_.empty() && !active_; }  // the step is like none of the schedules
  std::optional<std::size_t> followed() const { return followed_; }  // by the whole of the last step
  // Of the storages from before a step that the followed schedule is about, how many have gone since the first step
  // that followed it: what takes their places (a state that was loaded) is unknown to it, and does not move.
  std::size_t gone() const { return gone_; }
  std::size_t standing() const { return standing_; }  // how many are left

  void begin();
  void tick();
  void on_allocate(BlockId id, std::uint64_t nbytes);
  void end(std::int64_t stalled_ns);  // the step's stalls
  void abandon();  // the step is not like any that was scheduled

  // The next command whose time has come; false when there is none.
  bool next(Command& command);
  BlockId block(std::uint32_t storage) const;  // kNoBlock: not bound, or dead
  std::uint64_t births_due() const;  // bytes that the active schedule has born in this tick, and are not yet
  // Where the next storage is born, if it is the one that the active schedule has there.
  Rank birth(std::uint64_t nbytes) const;
  // Whether the schedule has it made anew, or made as an ingredient; whether the operator that began last makes such a storage.
  bool wants_recipe(const Block& b, BlockId id) const;
  bool is_ingredient(const Block& b, BlockId id) const;
  bool makes_anew() const {
    return active_ && scripts_[*active_].makers[std::min(tick_, scripts_[*active_].schedule.n_ticks - 1)];
  }
  // Storages of before the step that the active schedule has on a slower tier at its beginning.
  template <typename Take>
  void each_that_begins_away(Take take) const;
  // Ticks until the block is used next, if the active schedule knows.
  std::optional<std::uint32_t> until_use(const Block& b, BlockId id) const;
  // How long before its next use the next tick begins, by the schedule's clock.
  std::optional<std::int64_t> ns_left(const Block& b, BlockId id) const;
  void was_late(const Block& b, BlockId id, std::int64_t ns);  // for its prefetch

 private:
  struct Late {
    std::int64_t ns = 0;
    std::uint64_t bytes = 0;  // that the storage holds while it is here
  };

  struct Script {
    Schedule schedule;
    std::vector<Bound> bound;  // by storage
    std::vector<bool> makers;  // by tick: its operator makes something that is to have a recipe
    std::vector<Late> late;  // by storage, in this step
    std::vector<Command> best;  // the commands of the step with the least stall, their headroom, and that stall
    std::vector<std::uint64_t> best_headroom;
    std::int64_t best_stalled_ns = 0;
    unsigned setbacks = 0;  // how often moving them made it worse
    std::optional<std::size_t> standing;  // of its storages from before a step, at the end of the first that followed it
    bool agrees = false;  // with what this step has allocated so far; none does that came during it
    bool is_free() const { return schedule.n_ticks == 0; }  // its number is nobody's
  };

  bool is_bound(const Block& b, BlockId id) const;
  bool follow(std::size_t number);
  void bind(Script& script, std::uint32_t storage, Bound block);
  std::size_t standing(const Script& script) const;
  void learn(Script& script, std::int64_t stalled_ns);
  void move_late_ones(Script& script);

  BlockTable& blocks_;
  const Rank slowest_;
  std::vector<Script> scripts_;
  std::optional<std::size_t> active_;
  std::optional<std::size_t> followed_;
  std::size_t gone_ = 0, standing_ = 0;
  std::size_t preferred_ = 0;
  std::vector<Bound> seen_;  // this step's allocations
  std::uint32_t tick_ = 0;  // by the active schedule's count
  std::size_t next_command_ = 0;
};

// A replay for those who do not hold the mutex that guards it.
class Schedules {
 public:
  Schedules(std::mutex& mutex, Replay& replay) : mutex_(mutex), replay_(replay) {}

  // Follow this schedule in every step that allocates like it. Returns its number.
  std::size_t load(Schedule schedule) {
    Lock lock(mutex_);
    return replay_.load(std::move(schedule));
  }
  // Follow it no more; without a number, none. Between steps.
  void unload(std::size_t number) {
    Lock lock(mutex_);
    replay_.unload(number);
  }
  void unload() {
    Lock lock(mutex_);
    replay_.unload();
  }
  std::optional<std::size_t> followed() {
    Lock lock(mutex_);
    return replay_.followed();
  }
  std::size_t gone() {
    Lock lock(mutex_);
    return replay_.gone();
  }
  std::size_t standing() {
    Lock lock(mutex_);
    return replay_.standing();
  }

 private:
  using Lock = std::lock_guard<std::mutex>;

  std::mutex& mutex_;
  Replay& replay_;
};

template <typename Take>
void Replay::each_that_begins_away(Take take) const {
  if (!active_) return;
  const auto& storages = scripts_[*active_].schedule.storages;
  for (std::uint32_t i = 0; i < storages.size(); ++i) {
    if (storages[i].begins == kFast || storages[i].birth != kNever) continue;
    if (BlockId id = block(i); id != kNoBlock) take(id, storages[i].begins);
  }
}

}  // namespace ebbtide
