// Times the chosen idle intervals: planners/search/timing.py says what is asked for, and how it works.
#pragma once

#include <cstdint>
#include <vector>

namespace ebbtide::search {

// The times at which ticks are reached, in a step, the one before and three after it: `reached` begins at tick -n_ticks.
struct Clock {
  std::int64_t n_ticks;
  double step_ns;
  std::vector<double> reached;
};

// Chosen intervals. Each is last used at tick `after` and next at `until`. Its contents are final from `ready` on. Copies take so
// many ns on the links of its `tier`, whatever number that has.
struct Chosen {
  std::vector<std::int64_t> after, until, ready, paged, tier;
  std::vector<std::uint8_t> pays, returns;  // whether it is written, and fetched
  std::vector<double> in_ns, out_ns;
};

// Fetches go `lead_ns` before they must. `lazy` puts writes off as long as nobody else wants the room.
struct Pace {
  double lead_ns;
  bool lazy;
};

// Moves by chosen interval: it is away in the ticks [gone, back). Its write, if it has one, lasts during [out, done).
struct Moves {
  std::vector<std::int64_t> out, done, gone, back;
};

// `free` is the room at each tick while all of them are away. Throws std::invalid_argument for columns that do not belong
// together.
Moves time_moves(const Chosen& chosen, const std::vector<std::int64_t>& free, const Clock& clock, const Pace& pace);

}  // namespace ebbtide::search
