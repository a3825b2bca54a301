// A bound on a step's time: the row of windows, of ticks between two cuts, that takes longest together.
// What it says of a plan is told in planners/search/bound.py, which asks here; ticks, places and bytes are its own.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace ebbtide::search {

// Bytes that something happens to, by two ticks. Columns of one length.
struct Events {
  std::vector<std::int64_t> first, second, nbytes;
};

// Between the first tiers, which hold `nbytes`, and the others. Times are ns a byte, in and out.
struct Wall {
  std::int64_t nbytes;
  std::vector<std::pair<double, double>> ns_per_byte;
  double lost_in, lost_out;
};

struct Step {
  std::vector<std::int64_t> cuts;  // ticks, ascending
  std::vector<double> begins_ns;   // when each of them begins
  std::vector<double> fresh;       // bytes that each needs from nowhere
  Events uses;                     // from the use before to the use
  Events rests;                    // from what makes contents to the last tick of which they are of use
};

// In ns. Throws std::invalid_argument for columns that do not belong together.
double longest_windows(const Step& step, const std::vector<Wall>& walls);

}  // namespace ebbtide::search
