#include "run_tiers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "../core/block.hpp"
#include "../core/compressed_tier.hpp"
#include "../core/file_tier.hpp"
#include "../core/numa_tier.hpp"
#include "../core/system.hpp"

namespace ebbtide {

namespace {

constexpr std::uint64_t kSample = std::uint64_t{64} << 20;

std::unique_ptr<Tier> make_tier(const AskedTier& asked) {
  const auto& [kind, capacity, node] = asked;
  try {
    if (kind == "compressed") return std::make_unique<CompressedTier>(capacity);
    if (kind == "numa") return std::make_unique<NumaTier>(node, capacity);
  } catch (const ArenaError& error) {
    throw std::invalid_argument(error.what());
  }
  throw std::invalid_argument("no such tier: " + kind);
}

}  // namespace

Tiers::List run_tiers(const std::vector<AskedTier>& asked, const std::vector<std::string>& spill_directories) {
  Tiers::List tiers;
  for (const AskedTier& each : asked) tiers.push_back(make_tier(each));
  tiers.push_back(std::make_unique<FileTier>(spill_directories));
  return tiers;
}

void check_tier(const AskedTier& asked) { make_tier(asked); }

namespace {

// A sample of memory of huge pages, and what moving and using it takes.
class Sample {
 public:
  Sample() : memory_(kSample, kHugePage, PROT_READ | PROT_WRITE) {
    madvise(begin(), kSample, MADV_HUGEPAGE);
    std::memset(begin(), 1, kSample);
  }
  ~Sample() { must_drop_pages(begin(), kSample); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  char* begin() const { return memory_.begin(); }
  // Carries the sample by chunks and returns bytes per second. Throws ArenaError.
  template <typename Carry>
  double rate(Carry carry) const {
    std::int64_t begun = now_ns();
    for (std::uint64_t at = 0; at < kSample; at += kChunk) {
      if (carry(at, begin() + at) != 0) throw ArenaError("a sample could not be moved to a tier");
    }
    return static_cast<double>(kSample) * 1e9 / static_cast<double>(std::max<std::int64_t>(now_ns() - begun, 1));
  }
  double read_rate() const {
    return rate([](std::uint64_t, char* from) {
      std::uint64_t sum[8]{};
      auto* words = reinterpret_cast<const std::uint64_t*>(from);
      for (std::size_t i = 0; i < kChunk / sizeof *words; i += 8) {
        for (std::size_t j = 0; j < 8; ++j) sum[j] += words[i + j];
      }
      volatile std::uint64_t seen = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
      static_cast<void>(seen);
      return 0;
    });
  }
  double write_rate() const {
    return rate([](std::uint64_t, char* to) { return std::memset(to, 2, kChunk) == to ? 0 : 1; });
  }

 private:
  Reservation memory_;
};

}  // namespace

TierRates measure_tier(const AskedTier& asked) {
  const auto& [kind, capacity, node] = asked;
  std::unique_ptr<Tier> tier = make_tier({kind, std::max(capacity, kSample), node});
  if (tier->reserve({0, 0, kSample}) != 0) throw ArenaError("a tier has no room for a sample");
  Sample sample;
  TierRates rates;
  if (auto* memory = dynamic_cast<InPlaceTier*>(tier.get()); memory != nullptr) {
    rates.fast_read = sample.read_rate(), rates.fast_write = sample.write_rate();
    rates.out = sample.rate([&](std::uint64_t, char* pages) { return memory->take(pages, kChunk); });
    rates.read = sample.read_rate(), rates.write = sample.write_rate();
    rates.back = sample.rate([&](std::uint64_t, char* pages) { return memory->give_back(pages, kChunk); });
    return rates;
  }
  for (int round = 0; round < 2; ++round) {  // in the first the tier gets its memory
    rates.out = sample.rate([&](std::uint64_t at, char* from) { return tier->write({0, at, kChunk}, from); });
  }
  rates.back = sample.rate([&](std::uint64_t at, char* to) {
    iovec part{to, kChunk};
    return tier->read({0, at, kChunk}, &part, 1);
  });
  return rates;
}

}  // namespace ebbtide
