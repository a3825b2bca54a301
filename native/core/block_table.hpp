// All blocks by id, and the list of live ones. Ids are recycled; the table never moves. Not thread-safe (the arena's mutex
// guards it). Nothing here allocates after construction.
#pragma once

#include <cstdint>
#include <span>

#include "block.hpp"
#include "system.hpp"

namespace ebbtide {

class BlockTable {
 public:
  static constexpr std::uint32_t kCapacity = std::uint32_t{1} << 21;

  BlockTable();

  BlockId create();             // a Dead block; kNoBlock when the table is full
  void destroy(BlockId id);     // callers MUST have taken it off every list
  Block& operator[](BlockId id) { return blocks_[id]; }
  const Block& operator[](BlockId id) const { return blocks_[id]; }

  std::uint32_t created() const { return created_; }  // ids below this have been used
  bool is_filled() const;  // its last page is in memory, though it is for the two millionth block: all memory is locked

  void add_live(BlockId id);
  void remove_live(BlockId id);
  std::span<const BlockId> live() const { return {live_, live_count_}; }

 private:
  Reservation block_memory_;
  Reservation live_memory_;
  Reservation free_memory_;
  Block* blocks_;
  BlockId* live_;
  BlockId* free_ids_;
  std::uint32_t live_count_ = 0;
  std::uint32_t free_count_ = 0;
  std::uint32_t created_ = 0;
};

}  // namespace ebbtide
