// Bytes at each tick of a step that comes round. Adding to a range and asking of one take the logarithm of the ticks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ebbtide::search {

using Ticks = std::int64_t;

// A tick may lie in the next step: [low, high) starts in the first step and may run past its end once.
class Levels {
 public:
  explicit Levels(const std::vector<std::int64_t>& of_tick);

  void add(Ticks low, Ticks high, std::int64_t nbytes);
  std::int64_t most(Ticks low, Ticks high) const;  // 0 for an empty range whose levels are all below

  // The first of the ticks [low, high) with less than `nbytes`, and the last; `high` and `low - 1` if there is none.
  Ticks first_below(Ticks low, Ticks high, std::int64_t nbytes) const;
  Ticks last_below(Ticks low, Ticks high, std::int64_t nbytes) const;

 private:
  struct Node {
    std::int64_t least, most, added;  // of the ticks under it, with all additions to the node and below it
  };

  void build(std::size_t node, std::size_t first, std::size_t last, const std::vector<std::int64_t>& of_tick);
  void add(std::size_t node, std::size_t first, std::size_t last, std::size_t low, std::size_t high, std::int64_t nbytes);
  std::int64_t most(std::size_t node, std::size_t first, std::size_t last, std::size_t low, std::size_t high) const;
  std::int64_t find(std::size_t node, std::size_t first, std::size_t last, std::size_t low, std::size_t high, std::int64_t nbytes,
                    bool earliest) const;

  std::size_t n_ticks_;
  std::vector<Node> nodes_;
};

}  // namespace ebbtide::search
