// The slower tiers of a run, by the names that its settings have for them. A new tier is a row here.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/tiers.hpp"

namespace ebbtide {

using AskedTier = std::tuple<std::string, std::uint64_t, int>;  // kind, capacity in bytes, NUMA node or -1

// What was asked for, in its order, then the spill file. Throws std::invalid_argument that says why one cannot be had, and
// ArenaError for the spill directories.
Tiers::List run_tiers(const std::vector<AskedTier>& asked, const std::vector<std::string>& spill_directories,
                      std::array<std::size_t, kRegions> region_bytes);

// Throws std::invalid_argument that says why such a tier cannot be had.
void check_tier(const AskedTier& asked);

// Bytes a second that one thread writes to such a tier, and reads from it: of a sample of 64 MiB.
std::pair<double, double> measure_tier(const AskedTier& asked);

}  // namespace ebbtide
