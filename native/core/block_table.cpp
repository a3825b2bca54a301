#include "block_table.hpp"

#include <new>

namespace ebbtide {

BlockTable::BlockTable()
    : block_memory_(kCapacity * sizeof(Block), kSmallPage, PROT_READ | PROT_WRITE),
      live_memory_(kCapacity * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE),
      free_memory_(kCapacity * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE),
      blocks_(reinterpret_cast<Block*>(block_memory_.begin())),
      live_(reinterpret_cast<BlockId*>(live_memory_.begin())),
      free_ids_(reinterpret_cast<BlockId*>(free_memory_.begin())) {}

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

bool BlockTable::is_filled() const {
  return created_ < kCapacity && is_in_memory(block_memory_.begin() + block_memory_.size() - kSmallPage);
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

}  // namespace ebbtide
