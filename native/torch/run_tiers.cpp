#include "run_tiers.hpp"

#include <algorithm>
#include <stdexcept>

#include "../core/block.hpp"
#include "../core/compressed_tier.hpp"
#include "../core/file_tier.hpp"
#include "../core/numa_tier.hpp"
#include "../core/system.hpp"

namespace ebbtide {

namespace {

constexpr std::uint64_t kSample = std::uint64_t{64} << 20;

std::unique_ptr<Tier> make_tier(const AskedTier& asked, std::array<std::size_t, kRegions> region_bytes) {
  const auto& [kind, capacity, node] = asked;
  try {
    if (kind == "compressed") return std::make_unique<CompressedTier>(capacity);
    if (kind == "numa") return std::make_unique<NumaTier>(node, capacity, region_bytes);
  } catch (const ArenaError& error) {
    throw std::invalid_argument(error.what());
  }
  throw std::invalid_argument("no such tier: " + kind);
}

}  // namespace

Tiers::List run_tiers(const std::vector<AskedTier>& asked, const std::vector<std::string>& spill_directories,
                      std::array<std::size_t, kRegions> region_bytes) {
  Tiers::List tiers;
  for (const AskedTier& each : asked) tiers.push_back(make_tier(each, region_bytes));
  tiers.push_back(std::make_unique<FileTier>(spill_directories));
  return tiers;
}

void check_tier(const AskedTier& asked) { make_tier(asked, {kHugePage, kHugePage}); }

std::pair<double, double> measure_tier(const AskedTier& asked) {
  const auto& [kind, capacity, node] = asked;
  std::unique_ptr<Tier> tier = make_tier({kind, std::max(capacity, kSample), node}, {kSample, kHugePage});
  std::vector<char> memory(kSample, 1);
  std::int64_t took[2]{};
  for (bool out : {true, true, false}) {  // the first time it gets its memory, and does not count
    std::int64_t begun = now_ns();
    if (out && took[1] == 0 && tier->reserve({0, 0, kSample}) != 0) throw ArenaError("a tier has no room for a sample");
    for (std::uint64_t at = 0; at < kSample; at += kChunk) {
      iovec part{memory.data() + at, kChunk};
      int error = out ? tier->write({0, at, kChunk}, part.iov_base) : tier->read({0, at, kChunk}, &part, 1);
      if (error != 0) throw ArenaError("a sample could not be moved to a tier");
    }
    took[out] = now_ns() - begun;
  }
  auto rate = [&](bool out) {
    return static_cast<double>(kSample) * 1e9 / static_cast<double>(std::max<std::int64_t>(took[out], 1));
  };
  return {rate(true), rate(false)};
}

}  // namespace ebbtide
