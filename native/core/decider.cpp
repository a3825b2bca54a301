#include "decider.hpp"

#include <algorithm>

namespace ebbtide {

const Policy* find_policy(std::string_view name) {
  auto found = std::ranges::find(kPolicies, name, &Policy::name);
  return found == std::end(kPolicies) ? nullptr : found;
}

std::size_t choose_victims(std::span<Candidate> candidates, std::uint64_t needed, const Policy& policy, MoveCosts costs,
                           std::size_t spare) {
  // Age per unit of what the return trip costs.
  auto rank = [&](const Candidate& c) {
    double cost = costs.read + (c.clean ? 0.0 : costs.write);
    return (static_cast<double>(c.age) + 1.0) / (policy.weighs_cost ? cost : 1.0);
  };
  bool transients_first = policy.evict_after_use == EvictAfterUse::Transients;
  auto leaves_later = [&](const Candidate& a, const Candidate& b) {
    if (a.shield != b.shield) return a.shield > b.shield;
    if (transients_first && a.transient != b.transient) return b.transient;
    double rank_a = rank(a);
    double rank_b = rank(b);
    return rank_a != rank_b ? rank_a < rank_b : a.id > b.id;  // a total order: the same input, the same victims
  };
  // A heap in place of a sort: most calls need a few victims among thousands.
  std::make_heap(candidates.begin(), candidates.end(), leaves_later);
  auto end = candidates.end();
  std::uint64_t covered = 0;
  std::size_t count = 0;
  while ((covered < needed || spare > 0) && end != candidates.begin()) {
    std::pop_heap(candidates.begin(), end, leaves_later);
    --end;
    if (covered >= needed) {
      --spare;
      continue;
    }
    covered += end->bytes;
    ++count;
  }
  std::reverse(candidates.begin(), candidates.end());
  return count;
}

bool evicts_after_use(const Policy& policy, bool transient) {
  return policy.evict_after_use == EvictAfterUse::Everything ||
         (policy.evict_after_use == EvictAfterUse::Transients && transient);
}

namespace {
std::uint64_t share(double of_budget, std::uint64_t budget) {
  return static_cast<std::uint64_t>(of_budget * static_cast<double>(budget));
}
}  // namespace

std::uint64_t batch_bytes(const Policy& policy, std::uint64_t budget) { return share(policy.batch, budget); }

std::uint64_t ahead_bytes(const Policy& policy, std::uint64_t budget, std::uint64_t free) {
  if (free >= std::min(share(policy.low, budget), policy.most_ahead)) return 0;
  return std::min(share(policy.high, budget), policy.most_ahead) - free;
}

}  // namespace ebbtide
