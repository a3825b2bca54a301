// The slower tiers of a run, by their names in its settings. A new tier is a row here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/tiers.hpp"

namespace ebbtide {

struct AskedTier {
  std::string kind;
  std::uint64_t capacity_bytes = 0;
  int node = -1;  // a NUMA node, or -1
};

// Makes the tiers that were asked for, in their order, then the spill file. Throws std::invalid_argument, which says why one
// cannot be had, and ArenaError for the spill directories.
Tiers::List run_tiers(const std::vector<AskedTier>& asked, const std::vector<std::string>& spill_directories);

// Throws std::invalid_argument, which says why, where such a tier cannot be had.
void check_tier(const AskedTier& asked);

// Bytes per second of one thread, on a sample of 64 MiB: moving it out to such a tier and back. Where the tier is used in place,
// also reading and writing it there and in fast memory.
struct TierRates {
  double out = 0, back = 0;
  double read = 0, write = 0, fast_read = 0, fast_write = 0;
};
TierRates measure_tier(const AskedTier& asked);

}  // namespace ebbtide
