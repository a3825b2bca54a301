// Evictions where no access faults [Note: uses]: what is used stays, and what leaves waits for its uses first.
#include <bit>

#include "moves.hpp"

namespace ebbtide {

// What is clean leaves at once, or when its uses have ended [Note: uses].
void Moves::evict_clean(BlockId id) {
  const Block& b = blocks_[id];
  memory_.region(b).is_detached(b.place) ? take_pages(id) : evict_after_uses(id);
}

void Moves::evict_after_uses(BlockId id) {
  Block& b = blocks_[id];
  memory_.region(b).start_leaving(b.place, false);
  b.state = State::Writing;
  enqueue(id, static_cast<Rank>(std::countr_zero(b.valid)), Then::Drop);
  b.transfer.only_leaves = true;
}

void Moves::take_up(BlockId id, bool writes) {
  if (memory_.faults()) return;
  Block& b = blocks_[id];
  b.seen = true;
  if (b.state == State::Writing) cancel(id);
  if (writes && b.state == State::Clean) make_dirty(id);
}

// What leaves a device does so in one: all of it has to be detached first.
std::uint32_t Moves::chunks(const Block& b) const {
  return memory_.faults() ? static_cast<std::uint32_t>((moved_bytes(b) + kChunk - 1) / kChunk) : 1;
}

int Moves::carry_out_of_device(const Block& b, const Extent& extent) {
  Region& r = memory_.region(b);
  if (!r.detach(b.place) || b.transfer.only_leaves) return 0;
  return tiers_.write(b.transfer.target, extent, r.contents(b.place));
}

}  // namespace ebbtide
