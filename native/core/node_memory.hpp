// Memory of a NUMA node that a probe measures: how long a load from it takes, and memory there for others to use in place.
#pragma once

#include <cstddef>

namespace ebbtide {

// ns of a load from `bytes` of such a node's memory that waits for the load before it, and that no prefetcher foresees: a
// walk over their cache lines, in one random cycle. A node of -1 is wherever this thread's memory lies. Throws ArenaError.
double load_latency_ns(int node, std::size_t bytes);

// All pages of a mapping, which have not been touched, come to lie on the node. 0 or an errno; ENOMEM: it has too little.
int place_on_node(void* begin, std::size_t bytes, unsigned node);

// For the walk: from each of n lines to the next one, a single cycle through all of them.
void link_randomly(char* lines, std::size_t count, std::size_t line_bytes);

}  // namespace ebbtide
