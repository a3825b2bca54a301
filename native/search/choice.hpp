// Chooses the idle intervals to take, so that every tick fits: planners/search/choice.py says what is asked for, and how it
// works.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "prices.hpp"

namespace ebbtide::search {

// The ticks [low, high) to which each interval of a covering gives room, and the bytes that each tick lacks.
struct Demand {
  std::vector<std::int64_t> low, high;
  std::vector<double> deficit;
};

// Says for each interval whether it is taken. It covers what `must` lacks, and what `wish` lacks as far as possible; nothing is
// returned if `must` cannot be covered. `wish` has the costs. Throws std::invalid_argument for columns that do not belong
// together.
std::optional<std::vector<std::uint8_t>> choose(const Demand& must, const Covering& wish);

}  // namespace ebbtide::search
