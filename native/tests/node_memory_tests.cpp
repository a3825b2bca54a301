// What a probe measures of a node's memory, and what it gives others to use there.
#include <sys/mman.h>

#include <vector>

#include "../core/node_memory.hpp"
#include "numa_ground.hpp"

using namespace ebbtide;

TEST(a_walk_over_lines_comes_by_each_once) {
  constexpr std::size_t kLines = 5000, kLine = 64;
  std::vector<char> memory(kLines * kLine);
  link_randomly(memory.data(), kLines, kLine);
  std::vector<bool> seen(kLines);
  const char* at = memory.data();
  for (std::size_t i = 0; i < kLines; ++i) {
    std::size_t line = static_cast<std::size_t>(at - memory.data()) / kLine;
    CHECK(!seen[line]);
    seen[line] = true;
    at = *reinterpret_cast<char* const*>(at);
  }
  CHECK(at == memory.data());
}

TEST(a_load_from_memory_takes_some_time) {
  CHECK(load_latency_ns(-1, 4 * kMiB) > 0.0);
  if (no_numa()) return;
  CHECK(load_latency_ns(static_cast<int>(far_node().number), 4 * kMiB) > 0.0);
}

TEST(no_latency_is_told_of_a_node_that_is_not_there) {
  CHECK(has(refusal_of([] { load_latency_ns(1023, kMiB); }), "NUMA node 1023"));
}

TEST(a_mapping_is_placed_on_a_node) {
  if (no_numa()) return;
  constexpr std::size_t kBytes = 8 * kMiB;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  const unsigned node = far_node().number;
  CHECK(place_on_node(memory, kBytes, node) == 0);
  Whereabouts found;
  look(memory, kBytes, node, found);
  CHECK(found.on_node == kBytes && found.elsewhere == 0 && found.absent == 0);
  munmap(memory, kBytes);
}
