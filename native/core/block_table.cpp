#include "block_table.hpp"

#include <algorithm>
#include <new>

namespace ebbtide {

BlockTable::BlockTable()
    : block_memory_(kCapacity * sizeof(Block), kSmallPage, PROT_READ | PROT_WRITE),
      live_memory_(kCapacity * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE),
      free_memory_(kCapacity * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE),
      blocks_(reinterpret_cast<Block*>(block_memory_.begin())),
      live_(reinterpret_cast<BlockId*>(live_memory_.begin())),
      free_ids_(reinterpret_cast<BlockId*>(free_memory_.begin())) {
  std::fill_n(buckets_, kBuckets, kNoBlock);
}

BlockId BlockTable::create() {
  BlockId id;
  std::uint32_t generation = 0;
  if (free_count_ > 0) {
    id = free_ids_[--free_count_];
    generation = blocks_[id].generation;
  } else if (created_ < kCapacity) {
    id = created_++;
  } else {
    return kNoBlock;
  }
  new (&blocks_[id]) Block;
  blocks_[id].generation = generation + 1;
  return id;
}

void BlockTable::destroy(BlockId id) { free_ids_[free_count_++] = id; }

void BlockTable::add_live(BlockId id) {
  blocks_[id].live_index = live_count_;
  live_[live_count_++] = id;
}

void BlockTable::remove_live(BlockId id) {
  std::uint32_t hole = blocks_[id].live_index;
  live_[hole] = live_[--live_count_];
  blocks_[live_[hole]].live_index = hole;
}

void BlockTable::keep(BlockId id) {
  Block& b = blocks_[id];
  b.kept_previous = kept_tail_;
  b.kept_next = kNoBlock;
  (kept_tail_ == kNoBlock ? kept_head_ : blocks_[kept_tail_].kept_next) = id;
  kept_tail_ = id;
  BlockId& head = buckets_[bucket(b.held)];
  b.bucket_previous = kNoBlock;
  b.bucket_next = head;
  if (head != kNoBlock) blocks_[head].bucket_previous = id;
  head = id;
  b.keeps_pages = true;
}

void BlockTable::unkeep(BlockId id) {
  Block& b = blocks_[id];
  (b.kept_previous == kNoBlock ? kept_head_ : blocks_[b.kept_previous].kept_next) = b.kept_next;
  (b.kept_next == kNoBlock ? kept_tail_ : blocks_[b.kept_next].kept_previous) = b.kept_previous;
  (b.bucket_previous == kNoBlock ? buckets_[bucket(b.held)] : blocks_[b.bucket_previous].bucket_next) = b.bucket_next;
  if (b.bucket_next != kNoBlock) blocks_[b.bucket_next].bucket_previous = b.bucket_previous;
  b.keeps_pages = false;
}

BlockId BlockTable::find_kept(std::uint64_t held) const {
  BlockId id = buckets_[bucket(held)];
  while (id != kNoBlock && blocks_[id].held != held) id = blocks_[id].bucket_next;
  return id;
}

}  // namespace ebbtide
