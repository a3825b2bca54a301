// Turns moves into stays: planners/search/timing.py says what a move is, ir/plan.py what a stay is.
#pragma once

#include <cstdint>
#include <vector>

#include "../simulate/lowering.hpp"
#include "timing.hpp"

namespace ebbtide::search {

// Moved intervals: each has a storage, by which they are sorted, and a group. `returns` is that of Chosen.
struct Moved {
  std::vector<std::int64_t> storage, group, until, tier;
  std::vector<std::uint8_t> returns;
};

// The facts about storages and groups that stays depend on.
struct Homes {
  std::vector<std::int64_t> birth, death;
  std::vector<std::uint8_t> persistent;
  std::vector<std::uint8_t> dirty;  // by group
  std::int64_t n_ticks;
};

// Makes the stays of storages that move. Throws std::invalid_argument for columns that do not belong together.
simulate::Stays stays_of(const Moved& moved, const Moves& moves, const Homes& homes);

}  // namespace ebbtide::search
