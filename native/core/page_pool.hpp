// The huge pages that no block holds. A pool slot is a huge page's worth of hidden address space; a *warm* slot
// holds a page, a *vacant* one does not (its first touch would make one). Pages move between blocks and slots by
// mremap, about 10 us each, and in steady state none goes back to the kernel, so nothing is zeroed again.
// Not thread-safe: the arena's mutex guards it. Allocates nothing after construction (used by the fault handler).
#pragma once

#include <cstdint>

#include "system.hpp"

namespace ebbtide {

using Slot = std::uint32_t;

class PagePool {
 public:
  explicit PagePool(std::uint32_t slots);

  std::uint32_t warm() const { return warm_; }
  char* address(Slot slot) const;

  Slot take();                         // a warm slot if there is one, else a vacant one; callers count the page
  void give(Slot slot, bool has_page);  // back to the pool
  void absorb(char* page);             // moves the page at `page` into a vacant slot, readable and writable
  void release(std::uint32_t pages);   // gives up to `pages` warm pages back to the kernel

 private:
  Slot pop_vacant();

  Reservation space_;
  Reservation warm_list_;    // Slot[]: stacks, so the most recently used pages go out first
  Reservation vacant_list_;
  Slot* warm_slots_;
  Slot* vacant_slots_;
  std::uint32_t warm_ = 0;
  std::uint32_t vacant_ = 0;
  std::uint32_t fresh_ = 0;  // slots [fresh_, slots) were never used
  std::uint32_t slots_;
};

}  // namespace ebbtide
