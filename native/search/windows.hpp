// A bound on a step's time: the row of windows that takes longest together. A window has the ticks between two cuts. It
// begins and ends as the operation at its cut begins, or as the operation before that cut ends. planners/search/bound.py
// asks here, and says what the bound means for a plan. Ticks, places and bytes are its own.
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
  std::vector<std::int64_t> cuts;        // ticks, ascending
  std::vector<double> begins_ns;         // when each of them begins
  std::vector<std::int64_t> fresh;       // bytes that each needs and that are none of its `uses`
  std::vector<std::int64_t> held;        // all bytes that each needs
  std::vector<std::int64_t> held_before;  // all bytes that the tick before each needs
  Events uses;                           // from the use before to the use
  Events rests;                          // from the tick that makes contents to the last one that can use them
  Events used;                           // from the tick that makes contents to a tick that uses them
  Events outlived;  // from the tick that makes contents to the one after a tick that uses or makes them, if they last so long
};

// Returns ns. Throws std::invalid_argument for columns that do not belong together.
double longest_windows(const Step& step, const std::vector<Wall>& walls);

}  // namespace ebbtide::search
