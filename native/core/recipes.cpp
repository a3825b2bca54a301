// What can be made anew [Note: recipes]. The maker is native/torch/recipes.cpp.
#include "arena.hpp"

namespace ebbtide {

bool Arena::wants_recipe(const void* address) {
  Lock lock(mutex_);
  bool is_planned = false;
  std::uint64_t bytes = 0;
  each_piece({address}, [&](BlockId id, std::uint64_t) {
    is_planned = is_planned || replay_.wants_recipe(blocks_[id], id);
    bytes += blocks_[id].paged_bytes;
  });
  return is_planned || (wants_all_recipes_ && fits(bytes));  // what does not fit would push itself out, over and over
}

void Arena::want_all_recipes(bool all, unsigned one_in) {
  Lock lock(mutex_);
  wants_all_recipes_ = all;
  one_in_is_ingredient_ = one_in;
}

bool Arena::keep_recipe(const void* address) {
  Lock lock(mutex_);
  bool kept = false;
  std::uint64_t recipe = ++recipes_;
  each_piece({address}, [&](BlockId id, std::uint64_t) {
    if (blocks_[id].external_pins == 0 && !in_child_ && moves_.keep_recipe(id, recipe)) kept = true;
  });
  return kept;
}

Forgotten Arena::forget_recipe(const void* address) {
  Lock lock(mutex_);
  bool any = false, is_whole = true, is_there = true;
  each_piece({address}, [&](BlockId id, std::uint64_t) {
    const Block& b = blocks_[id];
    any = true;
    is_there = is_there && b.state != State::Unmade;
    is_whole = is_whole && b.recipe != 0;
  });
  if (!is_there) return Forgotten::NotYet;
  each_piece({address}, [&](BlockId id, std::uint64_t) { moves_.forget_recipe(id); });
  return any && is_whole ? Forgotten::Whole : Forgotten::Part;
}

bool Arena::has_recipe(const void* address) {
  Lock lock(mutex_);
  bool any = false, is_whole = true;
  each_piece({address}, [&](BlockId id, std::uint64_t) { any = true, is_whole = is_whole && blocks_[id].recipe != 0; });
  return any && is_whole;
}

bool Arena::is_ingredient(const void* address) {
  if (wants_all_recipes_) {
    auto at = reinterpret_cast<std::uintptr_t>(address);
    return one_in_is_ingredient_ > 0 && (at / kSmallPage ^ at / kHugePage) % one_in_is_ingredient_ == 0 && has_recipe(address);
  }
  Lock lock(mutex_);
  bool found = false;
  each_piece({address}, [&](BlockId id, std::uint64_t) { found = found || replay_.is_ingredient(blocks_[id], id); });
  return found;
}

bool Arena::guard(const void* address) {
  Lock lock(mutex_);
  bool is_own = true;
  each_piece({address}, [&](BlockId id, std::uint64_t) { is_own = is_own && blocks_[id].external_pins == 0; });
  if (is_own) each_piece({address}, [&](BlockId id, std::uint64_t) { moves_.guard(id); });
  return is_own;
}

void Arena::unguard(const void* address) {
  Lock lock(mutex_);
  each_piece({address}, [&](BlockId id, std::uint64_t) { moves_.unguard(id); });
  mover_.changed();
}

std::uint64_t Arena::unmade_by(const void* address, std::uint64_t nbytes) {
  Lock lock(mutex_);
  std::uint64_t recipe = 0;
  each_piece(operand_at(address, nbytes), [&](BlockId id, std::uint64_t) {
    if (blocks_[id].state == State::Unmade) recipe = blocks_[id].recipe;
  });
  return recipe;
}

// kNoBlock: what lies there now is not Unmade by this recipe.
BlockId Arena::find_unmade(const void* address, const Block& like, std::uint64_t recipe) const {
  BlockId id = find_live(address);
  if (id == kNoBlock) return id;
  const Block& b = blocks_[id];
  return b.state == State::Unmade && b.recipe == recipe && b.paged_bytes == like.paged_bytes ? id : kNoBlock;
}

// Waits until it is Dirty, and its pages are fast memory's and lie still. False: it cannot be read back.
bool Arena::make_idle(Lock& lock, BlockId id) {
  const Block& b = blocks_[id];
  if (b.state == State::Untouched) touch(id, false, false);
  while (b.state != State::Dirty || b.transfer.busy() || b.home != kFast) {  // something moved it meanwhile
    if (b.transfer.busy()) {
      mover_.wait(lock, false);
    } else if (b.state == State::Clean) {
      moves_.make_dirty(id);
    } else if (b.is_absent()) {
      if (int error = room_.ensure_usable(lock, id); error != 0) return false;
    } else {
      room_.ensure_fast(lock, id);
    }
  }
  return true;
}

bool Arena::hand_over(const void* from, const void* to, std::uint64_t recipe, bool keeps) {
  Lock lock(mutex_);
  bool any = false;
  if (!keeps) {
    each_piece({to}, [&](BlockId id, std::uint64_t) {
      if (blocks_[id].recipe == recipe && blocks_[id].state != State::Unmade) moves_.forget_recipe(id);
    });
  }
  each_piece({from}, [&](BlockId made, std::uint64_t) {
    const Block& b = blocks_[made];
    const void* place = static_cast<const char*>(to) + b.before;
    if (find_unmade(place, b, recipe) == kNoBlock || !make_idle(lock, made)) return;
    BlockId id = find_unmade(place, b, recipe);
    if (id == kNoBlock) return;  // another thread was faster
    blocks_[id].last_use = ++recency_.now;
    moves_.hand_over(made, id);
    if (keeps) moves_.keep_recipe(id, recipe);
    any = true;
  });
  mover_.changed();
  return any;
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

void Arena::made_ingredient(std::uint64_t bytes) {
  Lock lock(mutex_);
  counters_.ingredients += bytes;
}

}  // namespace ebbtide
