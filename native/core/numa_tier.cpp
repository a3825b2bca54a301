#include "numa_tier.hpp"

#include <sched.h>

#include <cerrno>
#include <cstring>

#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

namespace {

constexpr std::int64_t kPause = 1'000'000'000;

unsigned checked(unsigned node, std::uint64_t capacity) {
  check_numa_node(numa_nodes(), node, capacity);
  if (!can_populate()) {
    throw ArenaError("a tier in the memory of another NUMA node needs Linux 5.14 (MADV_POPULATE_WRITE); leave it out");
  }
  return node;
}

// The node of this thread's CPU, or else one that has a CPU; the tier's own where there is no other.
unsigned find_fast_node(unsigned slow) {
  unsigned here = 0;
  if (getcpu(nullptr, &here) == 0 && here != slow) return here;
  for (const NumaNode& node : numa_nodes()) {
    if (node.cpus > 0 && node.number != slow) return node.number;
  }
  return slow;
}

std::uint64_t whole_pages(const Extent& extent) { return round_up(extent.bytes, kRegionPage[extent.region]); }

}  // namespace

NumaTier::NumaTier(unsigned node, std::uint64_t capacity)
    : node_(checked(node, capacity)),
      fast_node_(find_fast_node(node)),
      capacity_(capacity),
      name_("the memory of NUMA node " + std::to_string(node)) {
  int error = try_node(node);
  if (error == 0 || error == ENOMEM) {  // it may have some later
    keep_pages_where_they_are();
    return;
  }
  const char* cure = error == EPERM    ? "a container allows it with --cap-add SYS_NICE"
                     : error == EINVAL ? "this process may not use that node (cpuset.mems, numactl --membind)"
                                       : "it needs a kernel with CONFIG_NUMA";
  throw ArenaError("cannot place memory on NUMA node " + std::to_string(node) + " (mbind, move_pages: " + std::strerror(error) +
                   "); " + cure + ", or leave this tier out");
}

int NumaTier::reserve(const Extent& extent) {
  if (used_ + whole_pages(extent) > capacity_) return ENOSPC;
  if (now_ns() < short_until_ns_) return ENOMEM;
  used_ += whole_pages(extent);
  return 0;
}

void NumaTier::release(const Extent& extent) { used_ -= whole_pages(extent); }

int NumaTier::take(void* pages, std::size_t bytes) {
  int error = get_pages(pages, bytes, node_);
  if (error == 0) return 0;
  short_until_ns_ = now_ns() + kPause;
  move_to_node(pages, bytes, fast_node_);
  return error;
}

int NumaTier::give_back(void* pages, std::size_t bytes) { return move_to_node(pages, bytes, fast_node_); }

Failure NumaTier::explain(int error) const {
  return {name_.c_str(), error == ENOSPC ? "give the tier a larger size, or a slower one behind it"
                                         : "other processes use the node's memory: end them, or ask for less of it"};
}

}  // namespace ebbtide
