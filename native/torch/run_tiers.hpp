// The slower tiers of a run, by the names that its settings have for them. A new tier is a row here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/tiers.hpp"

namespace ebbtide {

struct AskedTier {
  std::string kind;
  std::uint64_t capacity_bytes = 0;
  int node = -1;  // of NUMA's, or -1
};

// What was asked for, in its order, then the spill file. Throws std::invalid_argument that says why one cannot be had, and
// ArenaError for the spill directories.
Tiers::List run_tiers(const std::vector<AskedTier>& asked, const std::vector<std::string>& spill_directories);

// Throws std::invalid_argument that says why such a tier cannot be had.
void check_tier(const AskedTier& asked);

// Bytes a second of one thread, on a sample of 64 MiB: moving it out to such a tier and back, and, where it is used in place,
// reading and writing it there and in fast memory.
struct TierRates {
  double out = 0, back = 0;
  double read = 0, write = 0, fast_read = 0, fast_write = 0;
};
TierRates measure_tier(const AskedTier& asked);

}  // namespace ebbtide
