// A machine as the simulator's engine sees it: ir/machine.py without names. Tiers are by rank, the fastest first.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace ebbtide::simulate {

inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 2;

struct Tier {
  std::int64_t capacity = kUnlimited;  // bytes
  bool reads = false, writes = false;  // whether operations may do so in place
  double read_ns = 0, write_ns = 0;    // for each byte in place, beyond what it takes on the first tier
  bool packs = false;                  // what lies there takes its packed bytes
};

struct Link {
  unsigned source, target;  // ranks
  double bytes_per_ns;      // alone
  double latency_ns = 0;
  int group = -1;  // -1: it shares with none
  double slows_compute = 0;
  double beside_bytes_per_ns = 0;  // alone, while an operation runs; 0: the same
};

struct LinkGroup {
  double bytes_per_ns;  // of all its links together
  bool in_order = false;
};

struct Machine {
  std::vector<Tier> tiers;
  std::vector<Link> links;
  std::vector<LinkGroup> groups;
  std::int64_t chunk_bytes = kUnlimited;
  bool exclusive = false;
  double overlap = 0;
  double fast_read_ns = 0, fast_write_ns = 0;  // for each byte on the first tier
};

}  // namespace ebbtide::simulate
