// Measured times of operations in place (ebbtide.ir.kernels), at the ticks of a step. A kernel is a whole operator, with all that
// runs in it: what its operands cost is told at the last of its ticks, and at its other ticks they cost nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace ebbtide::simulate {

// How much longer an operator takes by the placement of its operands: bit i is set where operand i lies on the slower tier.
struct Kernel {
  bool adds_up = false;  // each operand was measured alone, and what they cost adds up
  std::map<std::uint64_t, double> extra_ns;

  double extra(const std::vector<unsigned>& operands) const {
    double found = 0;
    std::uint64_t placement = 0;
    for (unsigned operand : operands) {
      placement |= std::uint64_t{1} << operand;
      if (adds_up) found += extra_ns.at(std::uint64_t{1} << operand);
    }
    return adds_up ? found : extra_ns.at(placement);
  }
};

// By tick and the rank of the slower tier.
struct Kernels {
  using Place = std::pair<std::size_t, unsigned>;

  std::map<Place, Kernel> at;
  std::map<Place, std::map<std::int64_t, unsigned>> operands;  // which operand of the tick's kernel a storage is

  std::optional<unsigned> operand(std::size_t tick, unsigned rank, std::int64_t storage) const {
    if (operands.empty()) return std::nullopt;
    auto here = operands.find({tick, rank});
    if (here == operands.end()) return std::nullopt;
    auto found = here->second.find(storage);
    return found == here->second.end() ? std::nullopt : std::optional(found->second);
  }
  double extra_ns(std::size_t tick, unsigned rank, const std::vector<unsigned>& slow) const {
    auto kernel = at.find({tick, rank});
    return kernel == at.end() ? 0.0 : kernel->second.extra(slow);
  }
};

}  // namespace ebbtide::simulate
