// Where a region's pages come from and go back to: hidden address space in which every page has its origin. A page
// that is in use shows in the region, moved there by mremap before its first touch; its origin stands empty meanwhile.
//
// The kernel makes a small page about as slowly as a tenth of a huge one. So small pages can also be had by *windows*,
// a huge page's worth of them that one page fault makes.
// Not thread-safe. Allocates nothing after construction (used by the fault handler).
#pragma once

#include <cstdint>

#include "free_runs.hpp"
#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

class PageSource {
 public:
  // `single` pages that are made one by one, and so many windows.
  PageSource(std::size_t page, std::uint32_t single, std::uint32_t windows);

  char* origin(Slot page) const { return space_.begin() + page * page_; }
  Run take(std::uint32_t most);  // one run of unmade pages, at most so many
  std::uint32_t windows() const { return windows_.count(); }  // that are left
  Run take_window();             // callers MUST know that there is one
  void give(Run run);            // callers MUST have moved them back to their origin, unmade

 private:
  std::size_t page_;
  std::uint32_t window_;  // its pages
  Slot first_window_;
  Reservation space_;
  FreeRuns single_;
  FreeRuns windows_;
};

}  // namespace ebbtide
