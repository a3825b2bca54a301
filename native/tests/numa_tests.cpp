// A tier in the memory of a NUMA node, on any machine; numa_nodes_tests.cpp has what takes two nodes.
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "numa_ground.hpp"

using namespace ebbtide;

namespace {

std::string refusal(const std::vector<NumaNode>& nodes, unsigned node, std::uint64_t bytes) {
  return refusal_of([&] { check_numa_node(nodes, node, bytes); });
}

}  // namespace

TEST(numa_nodes_are_read_with_their_memory_and_processors) {
  namespace fs = std::filesystem;
  std::string folder = std::string(spill_directory()) + "/numa-" + std::to_string(getpid());
  auto put = [&](const std::string& name, const char* text) {
    fs::create_directories(fs::path(folder + "/" + name).parent_path());
    std::ofstream(folder + "/" + name) << text;
  };
  put("online", "0-1,4\n");
  put("node0/meminfo", "Node 0 MemTotal:       24099396 kB\nNode 0 MemFree:         1024 kB\nNode 0 MemUsed: 9 kB\n");
  put("node0/cpulist", "0-2,8\n");
  put("node1/meminfo", "Node 1 MemTotal:              0 kB\nNode 1 MemFree:            0 kB\n");
  put("node1/cpulist", "3\n");
  put("node4/meminfo", "Node 4 MemTotal:        1048576 kB\nNode 4 MemFree:       524288 kB\n");
  put("node4/cpulist", "\n");
  std::vector<NumaNode> nodes = numa_nodes(folder);
  fs::remove_all(folder);
  CHECK(nodes.size() == 3 && nodes[0].cpus == 4 && nodes[1].bytes == 0 && nodes[2].number == 4);
  CHECK(nodes[0].free == 1024 * 1024 && nodes[2].bytes == std::uint64_t{1} << 30 && nodes[2].free == std::uint64_t{1} << 29);
  CHECK(describe(nodes) == "node 0 (23.0 GiB, 4 CPUs), node 1 (0 B, 1 CPU), node 4 (1.00 GiB, no CPU)");
  CHECK(numa_nodes(folder).empty());
}

TEST(a_numa_node_that_is_not_there_or_has_too_little_is_refused_with_what_would_work) {
  const std::vector<NumaNode> nodes{{0, std::uint64_t{8} << 30, 0, 2}, {1, 0, 0, 2}, {2, std::uint64_t{1} << 30, 0, 0}};
  CHECK(refusal(nodes, 2, std::uint64_t{1} << 30).empty() && refusal(nodes, 0, 1).empty());
  std::string absent = refusal(nodes, 99, kMiB), empty = refusal(nodes, 1, kMiB),
              large = refusal(nodes, 2, std::uint64_t{32} << 30);
  const char* usable = "(node 0 (8.00 GiB, 2 CPUs), node 2 (1.00 GiB, no CPU))";
  CHECK(has(absent, "no NUMA node 99") && has(absent, usable));
  CHECK(has(empty, "NUMA node 1 has no memory") && has(empty, usable));
  CHECK(has(large, "NUMA node 2 has 1.00 GiB") && has(large, "32.0 GiB asked for"));
  CHECK(has(refusal(nodes, 2, 0), "needs a size"));
  CHECK(has(refusal({}, 0, kMiB), "leave this tier out"));
  if (no_numa()) return;
  CHECK(has(refusal_of([] { NumaTier tier(99, kMiB); }), "no NUMA node 99"));
  CHECK(has(refusal_of([] { NumaTier tier(0, std::size_t{1} << 60); }), "asked for"));
}

TEST(a_numa_tier_counts_whole_pages_up_to_its_capacity) {
  if (no_numa()) return;
  std::unique_ptr<NumaTier> tier = make_numa_tier(16 * kMiB);
  const Extent huge{0, 4 * kMiB, 7 * kMiB}, small{1, 12288, 3 * kMiB + 4096}, far{0, std::uint64_t{1} << 30, 8 * kMiB};
  CHECK(tier->reserve(huge) == 0 && tier->space().used == 8 * kMiB);
  CHECK(tier->reserve(small) == 0 && tier->space().used == 11 * kMiB + 4096);
  CHECK(tier->reserve(far) == ENOSPC && tier->space().used == 11 * kMiB + 4096);
  tier->release(huge);
  CHECK(tier->reserve(far) == 0 && tier->space().used == 11 * kMiB + 4096);
  tier->release(far);
  tier->release(small);
  CHECK(tier->space().used == 0);
}

TEST(bytes_come_back_from_a_numa_tier_and_the_file_behind_it) {
  if (no_numa()) return;
  NumaGround ground(32 * kMiB, 24 * kMiB);
  Arena& arena = *ground.arena;
  std::vector<char*> data;
  std::vector<std::size_t> sizes;
  for (unsigned i = 0; i < 24; ++i) {
    sizes.push_back(i % 3 == 0 ? 4 * kMiB : i % 3 == 1 ? 100 * 1024 + 4 * i : 5 * kMiB + 4096);
    data.push_back(static_cast<char*>(arena.allocate(sizes[i])));
    fill(data[i], sizes[i], i);
  }
  unsigned in_node = 0, in_file = 0;
  for (char* p : data) in_node += (arena.tiers_with(p) & 2u) != 0, in_file += (arena.tiers_with(p) & 4u) != 0;
  CHECK(in_node > 0 && in_file > 0 && ground.tier->space().used > 0);
  for (unsigned round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < data.size(); ++i) CHECK(filled(data[i], sizes[i], i + 100 * round));
    for (unsigned i = 0; i < data.size(); ++i) fill(data[i], sizes[i], i + 100 * (round + 1));
    arena.check_invariants();
    CHECK(ground.tier->space().used <= 24 * kMiB);
  }
  for (char* p : data) arena.release(p);
  while (ground.tier->space().used > 0) std::this_thread::yield();  // what was under way drains
}

TEST(a_forked_child_reads_from_a_numa_tier_what_is_not_training_state) {
  if (no_numa()) return;
  NumaGround ground(0, 64 * kMiB);
  Arena& arena = *ground.arena;
  auto* data = static_cast<char*>(arena.allocate(12 * kMiB));
  auto* weights = static_cast<char*>(arena.allocate(12 * kMiB));
  arena.classify(weights, Kind::Parameter);
  for (char* p : {data, weights}) {
    fill(p, 12 * kMiB, 1);
    CHECK(arena.evict(p) > 0 && arena.tiers_with(p) == 2);
  }
  CHECK(in_child([&] { return filled(data, 12 * kMiB, 1); }));
  CHECK(!in_child([&] { return *static_cast<volatile char*>(weights) != 55; }));
  CHECK(filled(data, 12 * kMiB, 1) && filled(weights, 12 * kMiB, 1));
  fill(data, 12 * kMiB, 2);
  // Pages that a child may share stay where they are, unless they go to a file.
  CHECK(arena.tiers_with(data) == 2 && arena.fetch(data) == 0 && arena.tiers_with(data) == 2);
  CHECK(in_child([&] { return filled(data, 12 * kMiB, 2); }));
  CHECK(arena.evict(data, 2) > 0 && arena.tiers_with(data) == 4 && ground.tier->space().used == 12 * kMiB);
  CHECK(in_child([&] { return filled(data, 12 * kMiB, 2); }));
  CHECK(filled(data, 12 * kMiB, 2));
}
