// Moves from memory to memory, where contents are used in place [Note: in place]: the pages go, and nothing else changes.
#include "moves.hpp"

namespace ebbtide {

void Moves::start_migration(BlockId id, Rank target, bool urgent) {
  Block& b = blocks_[id];
  check(b);
  if (b.home == kFast) evicting_ += b.paged_bytes;
  mover_.enqueue(id, b.home, target, Then::Drop, urgent);
  b.transfer.brings = Brings::Pages;
}

// What the tier was asked for and did not give, or has given up.
void Moves::give_back(const Block& b, Rank home) {
  auto bytes = static_cast<std::int64_t>(b.paged_bytes);
  if (home == kFast) return budget_.account(-bytes);
  budget_.account_in_place(-bytes);
  tiers_.release(memory_.extent(b), bit(home));
}

void Moves::migrated(BlockId id, const Transfer& t) {
  Block& b = blocks_[id];
  auto bytes = static_cast<std::int64_t>(b.paged_bytes);
  bool lives = b.state != State::Dead;
  if (t.source == kFast && lives) evicting_ -= b.paged_bytes;
  if (t.target != kFast) budget_.account_in_place(bytes);  // until it is known which of the two gives it up
  if (t.error == 0) b.home = t.target;
  b.scattered = t.error != 0;
  give_back(b, t.error == 0 ? t.source : t.target);
  if (t.target == kFast) b.has_come();
  if (!lives) return free_drained(id);
  if (t.error != 0) {  // what one does not take, a slower one may
    if (t.source == kFast && b.external_pins == 0) start_evict(id, Then::Drop, t.target + 1u);
    return;
  }
  if (t.source == kFast) budget_.account_resident(-bytes), b.evicted += moved_bytes(b), b.written += moved_bytes(b);
  if (t.target == kFast) budget_.account_resident(bytes), b.fetched += moved_bytes(b), fetched_ += moved_bytes(b);
}

bool Moves::settle(BlockId id, Rank home) {
  Block& b = blocks_[id];
  if (tiers_.in_place(home)->take(b.address, b.paged_bytes) != 0) return false;  // no move of contents: there are none
  b.home = home;
  budget_.account_in_place(static_cast<std::int64_t>(b.paged_bytes));
  return true;
}

// They go back to the kernel.
void Moves::give_up_pages(Block& b) {
  memory_.region(b).decommit(b.place);
  give_back(b, b.home);
  b.home = kFast;
  b.scattered = false;
}

}  // namespace ebbtide
