// A region of address space on a grid of pages of one size, an arena's fast memory: pages of the kernel, which it moves from
// place to place. Slower tiers know a block's contents by its place here.
//
// Verbs, in pairs: allocate_pages() and free_pages() are of places with their pages (which are cached then), a place
// without pages is given back by free_address(); unmap() and begin_fill() are an eviction and a fetch, between which the
// place has no pages; decommit() and release_cached() give pages back to the system.
//
// [Note: pages]  A place of the grid is
//   a block's  with its page, or without (absent)
//   cached       a page that is nobody's, readable and writable, left where its last block died or put here by an eviction
//   vacant     inaccessible, without a page
// Blocks are born on cached pages where those lie, if so many lie side by side: nothing moves then, and nothing is zeroed.
// A page moves when its block is evicted (to a vacant place, which becomes cached), when a block comes back (from the cached pages
// that its bytes were read into, out of sight), and where cached pages are too scattered for a birth. Each moved page costs an
// interruption of every CPU that trains, so the fewer the better.
//
// The kernel moves one memory area at a time. Pages that were made at once are one area whenever they lie side by side as
// they did then, whatever became of them meanwhile: they have the same history. So pages are numbered as they are made.
// [Note: memory areas]  The kernel keeps a list of memory areas, and a process may have vm.max_map_count of them. Places
// side by side are one area if none of them has a page, or if all have, with the same protection and side by side as they
// were made; else each is an area of its own. So areas are counted, not asked for: a mark at every place says what lies
// there, and an area ends wherever a place does not continue the mark before it. The kernel may have merged more. Where
// areas run short the arena says so (`sparing`): then what is evicted gives its pages to the kernel and not to a vacant
// place, and births take new pages in place of scattered cached ones.
//
// [Note: scattered pages]  What one area moves in one system call and one interruption, so a run of many areas is dear to move,
// and each storage that is cut from the cached pages of others leaves more of them: after some hundred steps of small
// storages every page would move alone. A move costs about as much as ten new small pages. Where the contents of a run
// are on their way out, or not yet there, and its areas are shorter than that, it gets new pages in place of its own.
//
// The kernel makes a small page about as slowly as a tenth of a huge one, hence grow(): 512 of them by one page fault.
//
// Allocates nothing after construction (used by the fault handler). Not thread-safe: the arena's mutex guards it. Held bytes
// are the arena's to count: callers of allocate_pages() and begin_fill() have accounted for the pages that are not cached.
#pragma once

#include <algorithm>
#include <cstdint>

#include "free_runs.hpp"
#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

class Region {
 public:
  Region(std::size_t bytes, std::size_t page);

  std::size_t page() const { return page_; }
  bool contains(const void* p) const { return space_.contains(p); }
  char* address(Slot place) const { return space_.begin() + place * page_; }
  bool has_space(std::uint32_t pages) const { return vacant_.fits(pages); }
  std::uint64_t high_water() const { return high_water_; }  // one past the highest place ever taken
  // One past the highest place that a block owns, if one of so many pages comes now. It looks at places one by one.
  std::uint64_t owned_with(std::uint32_t pages) const;

  // Which block owns the place at `p`, or kNoBlock. Entries hold id + 1: untouched (zero) memory means nobody.
  BlockId owner(const void* p) const { return owner_entry(place_of(p)) - 1; }
  BlockId owner(Slot place) const { return owner_entry(place) - 1; }
  void set_owner(Run run, BlockId id) { std::fill_n(&owner_entry(run.first), run.count, id + 1); }

  std::uint64_t areas() const { return areas_; }  // at most
  std::uint64_t areas_beginning(Run run) const;  // at these places
  std::uint64_t count_areas() const { return 1 + areas_beginning({0, static_cast<std::uint32_t>(high_water()) + 1}); }
  // How many more areas there are when the pages of these places are gone; negative: fewer.
  int areas_more_without(Run run) const;
  std::uint64_t merge_areas();  // cached pages whose going leaves fewer areas go back to the kernel; returns their bytes

  std::uint32_t together(Run run) const;  // of these pages, how many from the first move as one

  std::uint64_t cached_bytes() const { return cached_.count() * page_; }
  // Of so many pages together, those that are not cached.
  std::uint64_t fresh_bytes(std::uint32_t pages) const { return (pages - std::min(pages, cached_.count())) * page_; }
  // Cached bytes, but for what so many pages together take, go back to the system, rounded up to pages; how many did.
  std::uint64_t release_cached(std::uint64_t bytes, std::uint32_t pages_kept);
  bool grow(std::uint64_t bytes);  // bytes of new cached pages, in whole huge pages; false: no place is left

  Run take_vacant(std::uint32_t pages);  // places without pages, inaccessible
  Run allocate_pages(std::uint32_t pages, bool sparing);  // places with their pages, accessible
  void give_pages(Run run, bool sparing);  // to places that have none: cached ones, then new ones
  void give_new(Run run);  // likewise; none of them was cached
  void free_pages(Run run) { cached_.give(run); }  // they become cached; callers MUST leave them accessible
  void free_address(Run run) { vacant_.give(run); }  // they have no pages
  void unmap(Run run);  // their pages become cached elsewhere; callers MUST have made them read-only
  void hand_over(Run from, Run to);  // all pages of a place to one that has none; accessible
  void decommit(Run run) { empty(run); }  // their pages go back to the system; the places stay the caller's
  bool make_read_only(Run run);  // false: the system refused
  bool is_read_only(Run run) const;  // all of it, or none
  void make_writable(Run run);
  bool let_read(const void* p);  // nobody's place, until it is taken; false: the system refused

  // A fetch: pages for these places are found, filled out of sight, and appear read-only all at once, or are cached again.
  void begin_fill(Run run);
  Run filling(Slot place, std::uint32_t most) const;  // where the pages for these places are now, one run of them
  void end_fill(Run run, bool appear);

  // In a forked child [Note: children]
  void hide();  // inaccessible, all of it
  void show(Run run);  // what it was given
  bool has_come(Slot first) const { return source(first) == first + 1; }
  void come(Slot first, void* pages, std::size_t bytes);  // these are its pages from `first` on

 private:
  std::size_t place_of(const void* p) const {
    return static_cast<std::size_t>(static_cast<const char*>(p) - space_.begin()) / page_;
  }
  BlockId& owner_entry(std::size_t place) const { return reinterpret_cast<BlockId*>(owners_.begin())[place]; }
  std::uint64_t& mark(Slot place) const { return reinterpret_cast<std::uint64_t*>(marks_.begin())[place]; }
  bool continues(Slot place) const;  // the area of the place before it
  std::uint64_t ends(Run run) const;  // of areas, at these places and right after them
  std::uint64_t ends_at_sides(Run run) const;  // not those within
  void set_marks(Run run, std::uint64_t first);
  std::uint64_t new_numbers(std::uint32_t count);
  void mark_read_only(Run run, bool read_only);
  // While it is filled; in a forked child, which begins with none, see come().
  Slot& source(Slot place) const { return reinterpret_cast<Slot*>(sources_.begin())[place]; }
  bool scattered(Run run) const;  // [Note: scattered pages]
  void make_at_once(Run run);
  void move(Run from, Slot to);  // leaves places without pages
  void empty(Run run);
  void make_vacant(Run run);
  void make(Run run, bool huge);

  const bool populates_ = can_populate();
  const std::size_t page_;
  Reservation space_;  // inaccessible, as long as there is the region
  Reservation owners_;
  Reservation marks_;  // [Note: memory areas]: 0 without a page, else its number, and kReadOnly
  Reservation sources_;
  FreeRuns vacant_, cached_;
  std::uint64_t high_water_ = 0;
  std::uint64_t next_number_ = 1;
  std::uint64_t areas_ = 1;
};

}  // namespace ebbtide
