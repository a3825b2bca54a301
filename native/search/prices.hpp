// Prices of room: Lagrange multipliers of the ticks that lack some, raised by Polyak's subgradient steps.
// planners/search/choice.py says what they are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ebbtide::search {

// Interval i gives `paged[i]` bytes to the ticks [low[i], high[i]), which may run past the step's end once. It costs `cost[i]`,
// and `write_cost` once for its group; or else `anew[i]` alone, infinite where that cannot be. Without `anew` it never can. A tick t
// lacks `deficit[t]` bytes; a negative one has some to spare.
struct Covering {
  std::vector<std::int64_t> low, high;
  std::vector<double> paged, cost;
  std::vector<std::int64_t> group;
  std::vector<double> write_cost, deficit;
  std::vector<double> anew = {};
};

struct Prices {
  std::vector<double> of_tick;  // for a byte
  double bound = 0.0;           // no choice that covers the deficits costs less
};

// Throws std::invalid_argument unless these are `rows` windows of a step of so many ticks, as those of a covering are.
void check_windows(const std::vector<std::int64_t>& low, const std::vector<std::int64_t>& high, std::size_t rows,
                   std::size_t n_ticks);

// Throws std::invalid_argument for columns that do not belong together.
Prices find_prices(const Covering& covering);

}  // namespace ebbtide::search
