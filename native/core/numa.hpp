// NUMA nodes: which there are, where pages lie, and getting pages of one. By the kernel's own calls, so that neither
// building nor running needs a library.
//
// [Note: no bind]  Memory bound to a node (MPOL_BIND) that has no page left is the OOM killer's business, whoever asks for
// the page: a touch, MAP_POPULATE or MADV_POPULATE_WRITE, which is a touch of each page. It kills the largest process, which
// is ours. So pages only prefer their node: one that the node does not give comes from another. get_pages() makes those that
// are missing, asks where all of them are, and moves those that are elsewhere. A move takes only what the node has, or gets
// by writing back and dropping page cache; it fails where that is not enough, and kills nobody.
//
// [Note: balancing]  The kernel's balancing moves pages to the CPU that touches them, but for those of memory that has a
// policy, as the arena's has where there is a tier of another node (keep_pages_where_they_are). What it watches is not seen by
// look() until it is touched again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ebbtide {

struct NumaNode {
  unsigned number = 0;
  std::uint64_t bytes = 0;  // MemTotal
  std::uint64_t free = 0;
  unsigned cpus = 0;
};

// Those that are online, in order; none where the kernel shows none.
std::vector<NumaNode> numa_nodes(const std::string& root = "/sys/devices/system/node");
// "node 0 (23.1 GiB, 2 CPUs), node 1 (1.00 GiB, no CPU)"
std::string describe(const std::vector<NumaNode>& nodes);
// Throws ArenaError, which says what would work, unless one of them is this node and has so much memory.
void check_numa_node(const std::vector<NumaNode>& nodes, unsigned node, std::uint64_t bytes);

// --- async-signal-safe; addresses and bytes are of whole pages; 0 or an errno
// All pages of the range, on this node; else some of them, on any: ENOMEM where the node has too few. Those that are there
// keep their contents, and whoever uses them notices nothing. The memory has the policy of make_pages_local().
int get_pages(void* begin, std::size_t bytes, unsigned node);
// What is there; addresses stay. ENOMEM: some did not move, because the node has too little, or somebody else uses them.
int move_to_node(void* begin, std::size_t bytes, unsigned node);
// Whether this process can get a page of the node: 0 or an errno.
int try_node(unsigned node);

struct Whereabouts {  // in bytes
  std::uint64_t on_node = 0;
  std::uint64_t elsewhere = 0;
  std::uint64_t absent = 0;
};
// Adds the range to them. Where the kernel does not say, all of it is elsewhere.
void look(const void* begin, std::size_t bytes, unsigned node, Whereabouts& found);

}  // namespace ebbtide
