// A region of address space on a grid of pages of one size, with the spill file that mirrors it: the block at page p of
// the region lies at page p of the file. One region is for blocks of huge pages, one for smaller blocks.
//
// [Note: pages]  A place of the grid is
//   a block's  with its page, or without (absent)
//   warm       a page that is nobody's, readable and writable, left where its last block died or put here by an eviction
//   vacant     inaccessible, without a page
// Blocks are born on warm pages where those lie, if so many lie side by side: nothing moves then, and nothing is zeroed.
// A page moves when its block leaves (to a vacant place, which becomes warm), when a block comes back (from the warm pages
// that its bytes were read into, out of sight), and where warm pages are too scattered for a birth. Each moved page costs an
// interruption of every CPU that trains, so the fewer the better.
//
// The kernel moves one memory area at a time. Pages that were made at once are one area whenever they lie side by side as
// they did then, whatever became of them meanwhile: they have the same history. So pages are numbered as they are made.
// The kernel makes a small page about as slowly as a tenth of a huge one, hence grow(): 512 of them by one page fault.
//
// Not thread-safe: the arena's mutex guards it. Allocates nothing after construction (used by the fault handler). Held
// bytes are the arena's to count: callers of take() and begin_fill() have accounted for the pages that are not warm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "block.hpp"
#include "free_runs.hpp"
#include "spill_file.hpp"
#include "system.hpp"
#include "types.hpp"
#include "userfault.hpp"

namespace ebbtide {

class Region {
 public:
  // With `userfault` (which outlives it) an absent block is accessible and watched, else it is inaccessible.
  Region(std::size_t bytes, std::size_t page, const std::vector<std::string>& spill_directories, Userfault* userfault = nullptr);

  std::size_t page() const { return page_; }
  bool contains(const void* p) const { return space_.contains(p); }
  char* address(Slot place) const { return space_.begin() + place * page_; }
  SpillFile& spill() { return spill_; }
  const SpillFile& spill() const { return spill_; }
  std::uint64_t warm_bytes() const { return warm_.count() * page_; }
  bool has_space(std::uint32_t pages) const { return vacant_.fits(pages); }
  std::uint64_t high_water() const { return high_water_; }  // one past the highest place ever taken

  std::uint32_t together(Run run) const;  // of these pages, how many from the first move as one

  // Which block owns the place at `p`, or kNoBlock. Entries hold id + 1: untouched (zero) memory means nobody.
  BlockId owner(const void* p) const { return owner_entry(place_of(p)) - 1; }
  void set_owner(Run run, BlockId id);

  Run take(std::uint32_t pages);        // places with their pages, accessible
  void give(Run run);                   // they become warm; callers MUST leave them accessible
  void give_place(Run run);             // they have no pages
  void vacate(Run run);                 // their pages become warm elsewhere; callers MUST have made them read-only
  void discard(Run run);                // their pages go back to the kernel; the places stay the caller's
  bool make_read_only(Run run);         // false: the kernel refused
  void make_writable(Run run);

  // A fetch: pages for these places are found, filled out of sight, and appear read-only all at once, or are warm again.
  void begin_fill(Run run);
  Run filling(Slot place, std::uint32_t most) const;  // where the pages for these places are now, one run of them
  void end_fill(Run run, bool appear);

  bool grow(std::uint64_t bytes);               // bytes of new warm pages, in whole huge pages; false: no place is left
  std::uint64_t release(std::uint64_t bytes);   // warm bytes, rounded up to pages, go back to the kernel; how many did

 private:
  std::size_t place_of(const void* p) const {
    return static_cast<std::size_t>(static_cast<const char*>(p) - space_.begin()) / page_;
  }
  BlockId& owner_entry(std::size_t place) const { return reinterpret_cast<BlockId*>(owners_.begin())[place]; }
  std::uint64_t& number(Slot place) const { return reinterpret_cast<std::uint64_t*>(numbers_.begin())[place]; }
  Slot& source(Slot place) const { return reinterpret_cast<Slot*>(sources_.begin())[place]; }  // while it is filled
  Run take_vacant(std::uint32_t pages);
  void move(Run from, Slot to);  // leaves places without pages
  void make_vacant(Run run);
  void make(Run run, bool huge);

  std::size_t page_;
  Userfault* userfault_;
  Reservation space_;
  Reservation owners_;
  Reservation numbers_;  // of the pages that are there
  Reservation sources_;
  FreeRuns warm_;
  FreeRuns vacant_;
  std::uint64_t high_water_ = 0;
  std::uint64_t next_number_ = 0;
  SpillFile spill_;
};

}  // namespace ebbtide
