// Memory areas: a process may have vm.max_map_count of them, and evicting what lies scattered makes more
// [Note: memory areas, in region.hpp]. The arena takes at most three quarters of them, less what the process had before.
// From half of that on they run short: pages of what is evicted go to the kernel, cached pages that part areas go with them, and
// what is small is kept, unless its going makes no more areas. Where they are used up, whole stretches of a region are evicted, so
// that what has to come back can: the remaining quarter is for what cannot wait, and for others than the arena.
#include <algorithm>
#include <utility>

#include "arena.hpp"

namespace ebbtide {

std::uint64_t Arena::areas_for_arena(std::uint64_t most) {
  if (most == 0) most = most_memory_areas();
  std::uint64_t share = most / 4 * 3, besides = memory_areas();
  return std::max(share - std::min(share, besides), most / 4);
}

bool Arena::areas_run_short() const { return areas() > most_areas_ / 2; }

// The larger a storage, the more room it makes for the areas that it takes.
bool Arena::areas_let_evict(const Block& b) const {
  if (!areas_run_short() || region(b).areas_more_without(b.place) <= 0) return true;
  std::uint64_t left = most_areas_ - std::min(areas(), most_areas_);
  return b.paged_bytes * left > kSmallPage * (most_areas_ / 2);
}

// Called where areas may have become more, and not between a claim and the taking of its pages.
void Arena::spare_areas() {
  areas_merged_at_ = std::min(areas_merged_at_, areas());
  if (areas() < most_areas_) clear_from_ = most_areas_;
  if (!areas_run_short()) return;
  if (areas() > areas_merged_at_ + most_areas_ / 32) {
    account(-static_cast<std::int64_t>(huge_.merge_areas() + small_.merge_areas()));
    areas_merged_at_ = areas();
  }
  if (areas() < clear_from_ || userfault_ != nullptr) return;  // what is watched is an area whether it is here or away
  clear_stretch(huge_.areas() > small_.areas() ? huge_ : small_);
  clear_from_ = areas() + most_areas_ / 64;  // what was found to be kept is not looked at again at once
}

// Evicts place by place, from where it stopped the last time, until a sixteenth of the areas is free or will be. Whatever
// makes no more areas is evicted, counting that its neighbour before it is about to.
void Arena::clear_stretch(Region& r) {
  Slot& hand = &r == &huge_ ? cleared_up_to_[0] : cleared_up_to_[1];
  std::uint64_t target = most_areas_ - most_areas_ / 16, will_go = 0, failures = write_failures_;
  bool before_goes = false;
  for (std::uint64_t walked = 0; walked < r.high_water() && areas() > target + will_go;) {
    if (hand >= r.high_water()) hand = 0;
    BlockId id = r.owner(hand);
    Run place = id == kNoBlock ? Run{hand, 1} : blocks_[id].place;
    hand = place.first + place.count;
    walked += place.count;
    bool beside_one_that_goes = std::exchange(before_goes, false);
    if (id == kNoBlock || !may_move(blocks_[id]) || in_use(blocks_[id])) continue;
    if (r.areas_more_without(place) - (beside_one_that_goes ? 1 : 0) > 0) continue;
    std::uint64_t its_own = r.areas_beginning(place);
    if (!start_evict(id)) {
      if (write_failures_ != failures) return;  // the disk is full: it is for all
      continue;
    }
    request_refetch(id);
    before_goes = blocks_[id].state == State::Writing;
    if (before_goes) will_go += its_own;
  }
}

// Waits for evictions where what comes back might take the last areas; false: there is nothing to wait for, or
// the disk has not answered for too long.
bool Arena::wait_for_areas(Lock& lock, std::int64_t since) {
  spare_areas();
  if (areas() < most_areas_ + most_areas_ / 8 || busy_transfers_ == 0 || userfault_ != nullptr) return false;
  if (now_ns() - std::max(since, progress_ns_) > watchdog_ns_) return false;
  wait(lock, true);
  return true;
}

}  // namespace ebbtide
