// The pages of one size that all blocks live on. Each page has a *home*, a slot of the pool's hidden address space. A slot is
//   warm   its page is at home, readable and writable, and nobody's
//   empty  it has no page (a first touch would make one)
//   taken  a block's: its page shows at the block's address, or is being filled at home
// Pages go out and come home in runs of neighbouring slots, by one mremap each, whatever happened to them meanwhile; so
// free memory never falls to pieces, and in steady state none goes back to the kernel and nothing is zeroed again.
//
// The kernel makes a small page about as slowly as a tenth of a huge one. So small pages are made 512 at a time where the
// budget allows, by one page fault in a *window*, a huge page's worth of slots.
// Not thread-safe: the arena's mutex guards it. Allocates nothing after construction (used by the fault handler).
#pragma once

#include <cstdint>

#include "free_runs.hpp"
#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

class PagePool {
 public:
  // `single` slots for pages made one by one, and so many windows.
  PagePool(std::size_t page, std::uint32_t single, std::uint32_t windows);

  std::uint64_t warm_bytes() const { return warm_.count() * page_; }
  bool fits(std::uint32_t pages) const { return warm_.fits(pages); }  // warm ones, in one run
  char* address(Slot slot) const { return space_.begin() + slot * page_; }

  Run take(std::uint32_t most);         // warm ones if there are any, the longest run that is useful; else empty ones
  Run take_whole(std::uint32_t pages);  // all of them in one run: warm ones if a run fits, else empty ones
  void give(Run run) { warm_.give(run); }  // taken slots with their pages at home
  // The pages of a taken run appear at `to`, which MUST be reserved address space, with this protection.
  void show(Run run, char* to, int protection);
  // Back from where they were shown, and warm. `from` stays mapped, and empty.
  void bring_home(char* from, Run run);
  // The same for pages that a forked child may share: recycled, they would be copied, so they go back to the kernel.
  void bring_home_empty(char* from, Run run);
  bool grow();  // a window's pages become warm; false: no window is left
  // Gives warm bytes back to the kernel, `bytes` of them and perhaps a part of a page more; returns how many.
  std::uint64_t release_windows(std::uint64_t bytes);  // in whole huge pages only
  std::uint64_t release(std::uint64_t bytes);

 private:
  void move_home(char* from, Run run);
  Run take_empty(std::uint32_t pages);
  void discard(Run run);

  std::size_t page_;
  std::uint32_t window_;        // its slots
  Slot first_window_;           // windows do not touch each other, so that a free one is a run of its own
  Reservation space_;
  FreeRuns warm_;
  FreeRuns empty_;
  FreeRuns empty_windows_;
};

}  // namespace ebbtide
