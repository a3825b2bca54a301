// Whom to evict: a pure function of what has been seen. It touches no memory but its arguments and makes no system
// call, so the same code can be driven by a simulator, and by tests.
//
// It ranks by age over the cost of the round trip: of two storages equally long unused, the clean one leaves first,
// because it leaves without a write. Age is the time since the last use, or, where a schedule knows, until the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "types.hpp"

namespace ebbtide {

// How much a storage should be spared. Callers never offer what an operator holds right now.
enum class Shield : std::uint8_t {
  None,     // nobody is using it
  ThisTick,  // touched since the current operator began
  Outer,    // an operand of an operator that is waiting for an inner one
};

struct Candidate {
  BlockId id;
  Shield shield;
  bool clean;
  std::uint64_t bytes;
  std::uint64_t age;  // larger leaves earlier; in one unit for all candidates
};

// The price of moving, in any one unit per byte.
struct MoveCosts {
  double write = 1.0;
  double read = 1.0;
};

// Reorders `candidates` so that the first n cover `needed` bytes with as little regret as is known; returns n
// (all of them when even that is too little).
std::size_t choose_victims(std::span<Candidate> candidates, std::uint64_t needed, MoveCosts costs);

}  // namespace ebbtide
