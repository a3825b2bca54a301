// All blocks by id, the list of live ones, and the freed ones that kept their pages. Ids are recycled; the table
// never moves. Not thread-safe (the arena's mutex guards it). Nothing here allocates after construction.
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

  void add_live(BlockId id);
  void remove_live(BlockId id);
  std::span<const BlockId> live() const { return {live_, live_count_}; }

  void keep(BlockId id);        // a Dead block with pages joins the kept ones
  void unkeep(BlockId id);
  BlockId find_kept(std::uint64_t held) const;  // the one freed last, of exactly this size
  BlockId oldest_kept() const { return kept_head_; }
  BlockId next_kept(BlockId id) const { return blocks_[id].kept_next; }

 private:
  static constexpr std::uint32_t kBuckets = 4096;
  static std::uint64_t bucket(std::uint64_t held) { return held / kSmallPage * 2654435761u % kBuckets; }

  Reservation block_memory_;
  Reservation live_memory_;
  Reservation free_memory_;
  Block* blocks_;
  BlockId* live_;
  BlockId* free_ids_;
  std::uint32_t live_count_ = 0;
  std::uint32_t free_count_ = 0;
  std::uint32_t created_ = 0;
  BlockId kept_head_ = kNoBlock;
  BlockId kept_tail_ = kNoBlock;
  BlockId buckets_[kBuckets];
};

}  // namespace ebbtide
