// A bound on a step's time: the row of windows that takes longest together. A window has the ticks between two cuts.
// planners/search/bound.py asks here, and says what the bound means for a plan. Ticks, places and bytes are its own.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace ebbtide::search {

// Events of so many bytes, each between two ticks. The columns have one length.
struct Events {
  std::vector<std::int64_t> first, second, nbytes;
};

// The border between the first tiers, which hold `nbytes`, and the others. Times are ns a byte, in and out.
struct Wall {
  std::int64_t nbytes;
  std::vector<std::pair<double, double>> ns_per_byte;
  double lost_in, lost_out;
};

struct Step {
  std::vector<std::int64_t> cuts;  // ticks, ascending
  std::vector<double> begins_ns;   // when each of them begins
  std::vector<double> fresh;       // bytes that each needs and that come from nowhere
  Events uses;                     // from the use before to the use
  Events rests;                    // from the tick that makes contents to the last one that can use them
};

// Returns ns. Throws std::invalid_argument for columns that do not belong together.
double longest_windows(const Step& step, const std::vector<Wall>& walls);

}  // namespace ebbtide::search
