// Finds the groups of copies that the two links of a tier can carry in time: planners/search/slow_tiers.py says what for.
#pragma once

#include <cstdint>
#include <vector>

namespace ebbtide::search {

// Copies [first[i], last[i]) are those of group i. A copy out may begin at `leaves`, and one back must have ended at `needed`.
// Both are places on a step of `n_bins` bins, which goes round. A bin is `bin_ns` of each link.
struct Copies {
  std::vector<std::int64_t> first, last;
  std::vector<double> leaves, needed, out_ns, in_ns;
  double bin_ns;
  std::int64_t n_bins;
};

// Says for each group whether all of its copies are done in time: within so many bins of where they may begin or must have ended,
// plus as many as they take. Groups ask in this `order`, after all `others`, which go anyway. Throws std::invalid_argument for
// columns that do not belong together.
std::vector<std::uint8_t> carried(const Copies& copies, const std::vector<std::int64_t>& order,
                                  const std::vector<std::uint8_t>& others, double write_bins, double fetch_bins);

}  // namespace ebbtide::search
