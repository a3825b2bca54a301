// Evictions where no access faults [Note: uses]: what is used stays, and what leaves waits for its uses first.
#include <bit>

#include "arena.hpp"

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

// What leaves a device does so in one, since all of it has to be detached first, and so it comes back.
bool Moves::goes_in_one(const Transfer& t) const { return !memory_.faults() && (t.source == kFast || t.target == kFast); }

std::uint32_t Moves::chunks(const Block& b) const {
  return goes_in_one(b.transfer) ? 1 : static_cast<std::uint32_t>((moved_bytes(b) + kChunk - 1) / kChunk);
}

int Moves::carry_out_of_device(const Block& b, const Extent& extent) {
  Region& r = memory_.region(b);
  if (!r.detach(b.place) || b.transfer.only_leaves) return 0;
  return tiers_.write(b.transfer.target, extent, r.contents(b.place));
}

void Arena::saw(std::span<const void* const> storages) {
  Lock lock(mutex_);
  for (const void* address : storages) {
    BlockId id = find_live(address);
    if (id != kNoBlock) blocks_[id].seen = true;
  }
}

void Arena::used_on(const void* address, void* stream) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock) return;
  const Block& b = blocks_[id];
  memory_.region(b).used_on(b.place, stream);
  if (b.state == State::Writing) moves_.take_up(id, true);
}

void* Arena::base_of(const void* address, std::size_t* nbytes) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock) return nullptr;
  *nbytes = blocks_[id].nbytes;
  return blocks_[id].address;
}

std::uint64_t Arena::give_back(std::uint64_t nbytes) {
  Lock lock(mutex_);
  std::uint64_t given = memory_.release_cached(nbytes, {});
  budget_.account(-static_cast<std::int64_t>(given));
  return given;
}

}  // namespace ebbtide
