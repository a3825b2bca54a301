// Blocks that a schedule counts on and that the decider took, or whose prefetch was given up: those come back shortly
// before their use. Under the arena's mutex; allocates nothing after construction.
#pragma once

#include <cstdint>
#include <span>

#include "block_table.hpp"
#include "replay.hpp"

namespace ebbtide {

class Refetches {
 public:
  Refetches(BlockTable& blocks, const Replay& replay)
      : blocks_(blocks),
        replay_(replay),
        memory_(BlockTable::kCapacity * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE),
        ids_(reinterpret_cast<BlockId*>(memory_.begin()), BlockTable::kCapacity) {}

  void request(BlockId id) {
    Block& b = blocks_[id];
    if (b.comes_back == Return::Pending || count_ == ids_.size() || !replay_.until_use(b, id)) return;
    b.comes_back = Return::Pending;
    ids_[count_++] = id;
  }
  // Hands over those whose time has come, where fetching takes so long.
  template <typename Take>
  void take_due(double ns_per_byte, Take take);

 private:
  static constexpr double kLead = 2.0;  // of the time that a thread takes to fetch it: what is under way comes first

  BlockTable& blocks_;
  const Replay& replay_;
  Reservation memory_;
  std::span<BlockId> ids_;  // of blocks whose refetch is pending, or was
  std::size_t count_ = 0;
};

template <typename Take>
void Refetches::take_due(double ns_per_byte, Take take) {
  std::size_t kept = 0;
  for (BlockId id : ids_.first(count_)) {
    Block& b = blocks_[id];
    if (b.comes_back != Return::Pending || b.state == State::Dead) continue;
    auto left = replay_.ns_left(b, id);
    bool leaves = b.state == State::Writing || b.leaves_fast();
    bool is_away = b.is_away() || leaves;
    double takes = ns_per_byte * static_cast<double>(b.paged_bytes);
    if (!left || !is_away) {
      b.comes_back = Return::Unplanned;
    } else if (leaves || static_cast<double>(*left) > kLead * takes) {
      ids_[kept++] = id;
    } else {
      b.comes_back = Return::Unplanned;
      take(id);
    }
  }
  count_ = kept;
}

}  // namespace ebbtide
