// Memory areas: a process may have vm.max_map_count of them, and evicting what lies scattered makes more
// [Note: memory areas, in region.hpp]. The arena takes at most three quarters of them, less what the process had before.
// From half of that on they run short: pages of what is evicted go to the kernel, cached pages that part areas go with them, and
// what is small is kept, unless its going makes no more areas. Where they are used up, whole stretches of a region are evicted
// (room.cpp), so that what has to come back can: the remaining quarter is for what cannot wait, and for others than the arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "fast_memory.hpp"

namespace ebbtide {

class Areas {
 public:
  // Of the process; 0: vm.max_map_count. What it has already is counted now, before there are regions.
  explicit Areas(std::uint64_t most) : most_(share_of_arena(most)) {}
  void watch(FastMemory& memory) { memory_ = &memory; }

  std::uint64_t now() const { return memory_->areas(); }
  bool run_short() const { return now() > most_ / 2; }
  bool left() const { return now() < most_; }
  // The larger a storage, the more room it makes for the areas that it takes.
  bool let_evict(const Block& b) const {
    if (!run_short() || memory_->areas_more_without(b) <= 0) return true;
    std::uint64_t left = most_ - std::min(now(), most_);
    return b.paged_bytes * left > kSmallPage * (most_ / 2);
  }
  // Where they have become more, cached pages that part them go to the kernel; their bytes.
  std::uint64_t merge() {
    merged_at_ = std::min(merged_at_, now());
    if (now() < most_) clear_from_ = most_;
    if (!run_short() || now() <= merged_at_ + most_ / 32) return 0;
    std::uint64_t bytes = memory_->merge_areas();
    merged_at_ = now();
    return bytes;
  }
  // Whether a stretch has to be evicted; how many areas there may be afterwards; and what was found to be kept is not
  // looked at again at once.
  bool used_up() const { return run_short() && now() >= clear_from_; }
  std::uint64_t clear_to() const { return most_ - most_ / 16; }
  void cleared() { clear_from_ = now() + most_ / 64; }
  // What comes back might take the last ones.
  bool close_to_the_end() const { return now() >= most_ + most_ / 8; }

 private:
  static std::uint64_t share_of_arena(std::uint64_t most) {
    if (most == 0) most = most_memory_areas();
    std::uint64_t share = most / 4 * 3, besides = memory_areas();
    return std::max(share - std::min(share, besides), most / 4);
  }

  FastMemory* memory_ = nullptr;
  const std::uint64_t most_;
  std::uint64_t merged_at_ = 0;  // how many the last merging left, or fewer
  std::uint64_t clear_from_ = most_;
};

}  // namespace ebbtide
