// Moves that somebody asks the arena for: tests, tools, and operators that run in groups.
#include "arena.hpp"

namespace ebbtide {

std::uint64_t Arena::evict(const void* address, Rank target, std::uint64_t nbytes) {
  Lock lock(mutex_);
  if (in_child_) return 0;
  begin_stretch();
  std::uint64_t bytes = 0;
  each_piece(operand_at(address, nbytes), [&](BlockId id, std::uint64_t) { bytes += evict(lock, id, target); });
  return bytes;
}

std::uint64_t Arena::evict(Lock& lock, BlockId id, Rank target) {
  Block& b = blocks_[id];
  std::uint32_t generation = b.generation;
  while (b.generation == generation && b.transfer.busy()) mover_.wait(lock, true);  // an earlier move is still draining
  Rank home = b.home;
  if (b.generation != generation || !victims_.evictable(b) || !moves_.start_evict(id, Then::Drop, target)) return 0;
  while (b.generation == generation && (b.state == State::Writing || b.migrates())) mover_.wait(lock, true);
  return b.generation == generation && (b.state == State::Absent || b.home != home) ? b.paged_bytes : 0;
}

int Arena::fetch(const void* address) {
  if (in_child_) return fetch_in_child(address);
  Lock lock(mutex_);
  begin_stretch();
  int error = 0;
  each_piece({address}, [&](BlockId id, std::uint64_t) {
    if (error != 0 || blocks_[id].state == State::Untouched) return;
    std::uint32_t generation = blocks_[id].generation;
    error = room_.ensure_usable(lock, id);
    if (error == 0 && blocks_[id].generation == generation) room_.ensure_fast(lock, id);
  });
  return error;
}

bool Arena::copy(const void* address, Rank source, Rank target, Then then) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock) return false;
  Block& b = blocks_[id];
  std::uint32_t generation = b.generation;
  if (!moves_.start_copy(id, source, target, then)) return false;
  while (b.generation == generation && b.transfer.busy()) mover_.wait(lock, true);
  return b.generation == generation && (b.valid & bit(target)) != 0;
}

void Arena::prefetch(std::span<const Operand> operands) {
  Lock lock(mutex_);
  if (replay_.active()) return;  // the schedule knows better
  if (go_by_faults(operands)) return;
  std::uint64_t missing = 0;
  for (const Operand& operand : operands) {
    each_piece(operand, [&](BlockId id, std::uint64_t) {
      Block& b = blocks_[id];
      b.last_use = ++recency_.now;  // about to be used: not the next victim
      bool usable = !b.is_absent();  // in place
      if (!b.is_away() || b.transfer.busy() || (usable && !victims_.policy().promotes)) return;
      if (!room_.try_fetch(id) && !usable) missing += b.paged_bytes;
    });
  }
  if (missing > moves_.evicting()) victims_.start_evictions(missing - moves_.evicting(), Shield::None);
}

// Moves some block at some moments, also from under the operator that uses it. Off unless asked for.
void Arena::chaos() {
  if (chaos_rate_ <= 0.0 || blocks_.live().empty() || off_the_record) return;  // what makes anew would never come to an end
  auto random = [this] {  // xorshift64*
    chaos_state_ ^= chaos_state_ >> 12;
    chaos_state_ ^= chaos_state_ << 25;
    chaos_state_ ^= chaos_state_ >> 27;
    return (chaos_state_ * 2685821657736338717ull) >> 11;
  };
  if (static_cast<double>(random()) / static_cast<double>(1ull << 53) >= chaos_rate_) return;
  BlockId id = blocks_.live()[random() % blocks_.live().size()];
  const Block& b = blocks_[id];
  auto any_tier = [&] { return static_cast<Rank>(1 + random() % tiers_.last()); };
  if (b.home != kFast && random() % 2 == 0) {
    room_.try_fetch(id);
  } else if (victims_.evictable(b)) {
    moves_.start_evict(id, Then::DropInUse, tiers_.last() > 1 ? any_tier() : 1);
  } else if (tiers_.last() > 1 && !in_child_) {
    moves_.start_copy(id, any_tier(), any_tier(), random() % 2 == 0 ? Then::Keep : Then::Drop);
    moves_.drop(id, any_tier());
  }
}

}  // namespace ebbtide
