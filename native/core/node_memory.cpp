#include "node_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "numa.hpp"
#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

namespace {

constexpr std::size_t kLine = 64;
constexpr int kRounds = 5;

struct Mapping {
  explicit Mapping(std::size_t bytes)
      : bytes(bytes), begin(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (begin == MAP_FAILED) throw ArenaError("there is no memory to measure with");
    madvise(begin, bytes, MADV_HUGEPAGE);
  }
  ~Mapping() { munmap(begin, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const std::size_t bytes;
  void* const begin;
};

}  // namespace

int place_on_node(void* begin, std::size_t bytes, unsigned node) { return get_pages(begin, bytes, node); }

// Sattolo's shuffle, which makes one cycle.
void link_randomly(char* lines, std::size_t count, std::size_t line_bytes) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  std::mt19937_64 random(1);
  for (std::size_t i = count; i-- > 1;) std::swap(order[i], order[random() % i]);
  for (std::size_t i = 0; i < count; ++i) *reinterpret_cast<char**>(lines + i * line_bytes) = lines + order[i] * line_bytes;
}

double load_latency_ns(int node, std::size_t bytes) {
  Mapping memory(bytes);
  if (node >= 0) {
    if (int error = place_on_node(memory.begin, bytes, static_cast<unsigned>(node)); error != 0) {
      throw ArenaError("memory of NUMA node " + std::to_string(node) + " cannot be had: " + std::strerror(error));
    }
  }
  const std::size_t lines = bytes / kLine;
  link_randomly(static_cast<char*>(memory.begin), lines, kLine);
  std::int64_t took[kRounds];
  char* at = static_cast<char*>(memory.begin);
  for (std::int64_t& round : took) {
    std::int64_t begun = now_ns();
    for (std::size_t i = 0; i < lines; ++i) at = *reinterpret_cast<char* volatile*>(at);
    round = now_ns() - begun;
  }
  std::sort(took, took + kRounds);
  return static_cast<double>(took[kRounds / 2]) / static_cast<double>(lines);
}

}  // namespace ebbtide
