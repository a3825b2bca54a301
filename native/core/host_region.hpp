// The CPU's memory as a region: pages of the kernel, which it moves from place to place.
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
// Allocates nothing after construction (used by the fault handler).
#pragma once

#include <cstdint>
#include <memory>

#include "region.hpp"

namespace ebbtide {

class HostRegion final : public Region {
 public:
  HostRegion(std::size_t bytes, std::size_t page);

  std::uint64_t areas() const { return areas_; }  // at most
  std::uint64_t areas_beginning(Run run) const;  // at these places
  std::uint64_t count_areas() const { return 1 + areas_beginning({0, static_cast<std::uint32_t>(high_water()) + 1}); }
  // How many more areas there are when the pages of these places are gone; negative: fewer.
  int areas_more_without(Run run) const;
  std::uint64_t merge_areas();  // cached pages whose going leaves fewer areas go back to the kernel; returns their bytes

  std::uint32_t together(Run run) const;  // of these pages, how many from the first move as one

  std::uint64_t cached_bytes() const override { return cached_.count() * page(); }
  std::uint64_t fresh_bytes(std::uint32_t pages) const override { return (pages - std::min(pages, cached_.count())) * page(); }
  std::uint64_t release_cached(std::uint64_t bytes, std::uint32_t pages_kept) override;
  bool grow(std::uint64_t bytes);  // bytes of new cached pages, in whole huge pages; false: no place is left

  Run allocate_pages(std::uint32_t pages, bool sparing) override;
  void give_pages(Run run, bool sparing) override;
  void give_new(Run run) override;
  void free_pages(Run run) override { cached_.give(run); }
  void free_address(Run run) override { vacant_.give(run); }
  void unmap(Run run) override;
  void hand_over(Run from, Run to) override;
  void decommit(Run run) override { empty(run); }
  bool make_read_only(Run run) override;
  bool is_read_only(Run run) const;  // all of it, or none
  void make_writable(Run run) override;
  void begin_fill(Run run) override;
  Run filling(Slot place, std::uint32_t most) const override;
  void end_fill(Run run, bool appear) override;

  // In a forked child [Note: children]
  void hide();  // inaccessible, all of it
  void show(Run run);  // what it was given
  bool has_come(Slot first) const { return source(first) == first + 1; }
  void come(Slot first, void* pages, std::size_t bytes);  // these are its pages from `first` on

 private:
  HostRegion(std::unique_ptr<Reservation> space, std::size_t page);

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
  std::unique_ptr<Reservation> space_;
  Reservation marks_;  // [Note: memory areas]: 0 without a page, else its number, and kReadOnly
  Reservation sources_;
  FreeRuns cached_;
  std::uint64_t next_number_ = 1;
  std::uint64_t areas_ = 1;
};

}  // namespace ebbtide
