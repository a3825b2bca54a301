// A region of address space on a grid of pages of one size, and what memory must be able to do to be an arena's fast memory.
// HostRegion is the only one so far. Slower tiers know a block's contents by its place here.
//
// Verbs, in pairs: allocate_pages() and free_pages() are of places with their pages (which are cached then), a place
// without pages is given back by free_address(); unmap() and begin_fill() are an eviction and a fetch, between which the
// place has no pages; decommit() and release_cached() give pages back to the system.
//
// Not thread-safe: the arena's mutex guards it. Held bytes are the arena's to count: callers of allocate_pages() and
// begin_fill() have accounted for the pages that are not cached.
#pragma once

#include <algorithm>
#include <cstdint>

#include "free_runs.hpp"
#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

class Region {
 public:
  virtual ~Region() = default;

  std::size_t page() const { return page_; }
  bool contains(const void* p) const {
    return static_cast<const char*>(p) >= begin_ && static_cast<const char*>(p) < begin_ + bytes_;
  }
  char* address(Slot place) const { return begin_ + place * page_; }
  bool has_space(std::uint32_t pages) const { return vacant_.fits(pages); }
  std::uint64_t high_water() const { return high_water_; }  // one past the highest place ever taken

  // Which block owns the place at `p`, or kNoBlock. Entries hold id + 1: untouched (zero) memory means nobody.
  BlockId owner(const void* p) const { return owner_entry(place_of(p)) - 1; }
  BlockId owner(Slot place) const { return owner_entry(place) - 1; }
  void set_owner(Run run, BlockId id) { std::fill_n(&owner_entry(run.first), run.count, id + 1); }

  Run take_vacant(std::uint32_t pages);  // places without pages, inaccessible

  virtual std::uint64_t cached_bytes() const = 0;
  virtual std::uint64_t fresh_bytes(std::uint32_t pages) const = 0;  // of so many pages together, those that are not cached
  // Cached bytes, but for what so many pages together take, go back to the system, rounded up to pages; how many did.
  virtual std::uint64_t release_cached(std::uint64_t bytes, std::uint32_t pages_kept) = 0;

  virtual Run allocate_pages(std::uint32_t pages, bool sparing) = 0;  // places with their pages, accessible
  virtual void give_pages(Run run, bool sparing) = 0;  // to places that have none: cached ones, then new ones
  virtual void give_new(Run run) = 0;  // likewise; none of them was cached
  virtual void free_pages(Run run) = 0;  // they become cached; callers MUST leave them accessible
  virtual void free_address(Run run) = 0;  // they have no pages
  virtual void unmap(Run run) = 0;  // their pages become cached elsewhere; callers MUST have made them read-only
  virtual void hand_over(Run from, Run to) = 0;  // all pages of a place to one that has none; accessible
  virtual void decommit(Run run) = 0;  // their pages go back to the system; the places stay the caller's
  virtual bool make_read_only(Run run) = 0;  // false: the system refused
  virtual void make_writable(Run run) = 0;

  // A fetch: pages for these places are found, filled out of sight, and appear read-only all at once, or are cached again.
  virtual void begin_fill(Run run) = 0;
  virtual Run filling(Slot place, std::uint32_t most) const = 0;  // where the pages for these places are now, one run of them
  virtual void end_fill(Run run, bool appear) = 0;

 protected:
  Region(char* begin, std::size_t bytes, std::size_t page);  // of address space, inaccessible, as long as there is the region

  std::size_t place_of(const void* p) const { return static_cast<std::size_t>(static_cast<const char*>(p) - begin_) / page_; }

  FreeRuns vacant_;

 private:
  BlockId& owner_entry(std::size_t place) const { return reinterpret_cast<BlockId*>(owners_.begin())[place]; }

  char* const begin_;
  const std::size_t bytes_;
  const std::size_t page_;
  Reservation owners_;
  std::uint64_t high_water_ = 0;
};

}  // namespace ebbtide
