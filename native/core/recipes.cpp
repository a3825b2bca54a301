// What can be made anew [Note: recipes]. The maker is native/torch/recipes.cpp.
#include "arena.hpp"

namespace ebbtide {

bool Arena::wants_recipe(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  return id != kNoBlock && !blocks_[id].is_piece() && (wants_all_recipes_ || replay_.is_made_anew(blocks_[id], id));
}

bool Arena::keep_recipe(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  return id != kNoBlock && blocks_[id].external_pins == 0 && !in_child_ && moves_.keep_recipe(id);
}

bool Arena::forget_recipe(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock || !blocks_[id].has_recipe || blocks_[id].state == State::Unmade) return false;
  if (blocks_[id].valid == 0) {
    moves_.make_dirty(id);
  } else {
    blocks_[id].has_recipe = false;
  }
  return true;
}

void Arena::guard(const void* address) {
  Lock lock(mutex_);
  each_piece({address}, [&](BlockId id, std::uint64_t) { moves_.guard(id); });
}

void Arena::unguard(const void* address) {
  Lock lock(mutex_);
  each_piece({address}, [&](BlockId id, std::uint64_t) { moves_.unguard(id); });
  mover_.changed();
}

std::uint64_t Arena::absence_of(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  return id != kNoBlock && blocks_[id].state == State::Unmade ? blocks_[id].absence : 0;
}

bool Arena::hand_over(const void* from, const void* to, std::uint64_t absence, bool keeps) {
  Lock lock(mutex_);
  BlockId made = find_live(from), id = find_live(to);
  if (made == kNoBlock || id == kNoBlock) return false;
  Block& b = blocks_[made];
  while (b.state != State::Dirty || b.transfer.busy() || b.home != kFast) {  // something moved it meanwhile
    if (b.transfer.busy()) {
      mover_.wait(lock, false);
    } else if (b.state == State::Clean) {
      moves_.make_dirty(made);
    } else if (b.is_absent()) {
      if (int error = room_.ensure_usable(lock, made); error != 0) return false;
    } else {
      room_.ensure_fast(lock, made);
    }
  }
  Block& unmade = blocks_[id];
  if (unmade.state != State::Unmade || unmade.absence != absence || unmade.paged_bytes != b.paged_bytes) return false;
  unmade.last_use = ++recency_.now;
  moves_.hand_over(made, id);
  if (keeps && unmade.external_pins == 0) moves_.keep_recipe(id);
  mover_.changed();
  return true;
}

std::int64_t Arena::busy_ns() {
  Lock lock(mutex_);
  return now_ns() - stalls_.total();
}

const void* Arena::storage_at(const void* address) {
  Lock lock(mutex_);
  return operand_at(address, 0).address;
}

void Arena::made_anew(std::int64_t ns) {
  Lock lock(mutex_);
  counters_.made_anew_ns += ns;
  step_.was_apart(ns);
}

}  // namespace ebbtide
