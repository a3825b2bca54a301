// Tiers in the memory of a NUMA node for tests: the last node, which on a machine with one is the arena's own.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "../core/file_tier.hpp"
#include "../core/numa.hpp"
#include "../core/numa_tier.hpp"
#include "check.hpp"

inline ebbtide::NumaNode far_node() {
  ebbtide::NumaNode found;
  for (const ebbtide::NumaNode& node : ebbtide::numa_nodes()) {
    if (node.bytes > 0) found = node;
  }
  return found;
}

inline std::unique_ptr<ebbtide::NumaTier> make_numa_tier(std::uint64_t capacity) {
  return std::make_unique<ebbtide::NumaTier>(far_node().number, capacity);
}

// Where the kernel has no nodes, or a container may not place memory; says so.
inline bool no_numa() {
  static const std::string why = refusal_of([] { make_numa_tier(kMiB); });
  if (!why.empty()) std::printf("  skipped: %s\n", why.c_str());
  return !why.empty();
}

// That node's memory, and behind it a file.
struct NumaGround {
  NumaGround(std::uint64_t limit, std::uint64_t capacity) {
    ebbtide::Tiers::List tiers;
    tiers.push_back(make_numa_tier(capacity));
    tier = static_cast<ebbtide::NumaTier*>(tiers[0].get());
    tiers.push_back(std::make_unique<ebbtide::FileTier>(std::vector<std::string>{spill_directory()}));
    arena = &make_arena(limit, {}, std::move(tiers));
  }
  ebbtide::NumaTier* tier;
  ebbtide::Arena* arena;
};
