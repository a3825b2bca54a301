#include "decider.hpp"

#include <algorithm>

namespace ebbtide {

namespace {

// Larger leaves earlier: age per unit of what its return trip costs.
double regret_free_age(const Candidate& c, MoveCosts costs) {
  return (static_cast<double>(c.age) + 1.0) / (costs.read + (c.clean ? 0.0 : costs.write));
}

}  // namespace

std::size_t choose_victims(std::span<Candidate> candidates, std::uint64_t needed, MoveCosts costs) {
  auto leaves_later = [&](const Candidate& a, const Candidate& b) {
    if (a.shield != b.shield) return a.shield > b.shield;
    double age_a = regret_free_age(a, costs);
    double age_b = regret_free_age(b, costs);
    return age_a != age_b ? age_a < age_b : a.id > b.id;  // a total order: the same input, the same victims
  };
  // A heap in place of a sort: most calls need a few victims among thousands.
  std::make_heap(candidates.begin(), candidates.end(), leaves_later);
  auto end = candidates.end();
  std::uint64_t covered = 0;
  std::size_t count = 0;
  while (covered < needed && end != candidates.begin()) {
    std::pop_heap(candidates.begin(), end, leaves_later);
    --end;
    covered += end->bytes;
    ++count;
  }
  std::reverse(candidates.begin(), candidates.end());
  return count;
}

}  // namespace ebbtide
