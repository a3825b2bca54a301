#include "page_pool.hpp"

#include <algorithm>
#include <cerrno>

namespace ebbtide {

namespace {
constexpr std::uint32_t kStride = 2;  // windows from one to the next
}

// Only neighbours that share their first touch are merged by the kernel into one area when they are together again,
// and mremap takes one area at a time. So one page is touched before the pool can be split (and given back).
PagePool::PagePool(std::size_t page, std::uint32_t single, std::uint32_t windows)
    : page_(page),
      window_(static_cast<std::uint32_t>(kHugePage / page)),
      first_window_(static_cast<Slot>(round_up(single, window_))),
      space_((first_window_ + std::size_t{windows} * kStride * window_) * page, kHugePage, PROT_READ | PROT_WRITE),
      warm_(static_cast<std::uint32_t>(space_.size() / page)),
      empty_(static_cast<std::uint32_t>(space_.size() / page)),
      empty_windows_(windows) {
  set_inherited(space_.begin(), space_.size(), false);
  bool small = page < kHugePage;
  madvise(space_.begin(), first_window_ * page, small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  if (windows > 0) madvise(address(first_window_), space_.size() - first_window_ * page, MADV_HUGEPAGE);
  for (Slot slot : {Slot{0}, first_window_}) {
    if (slot == first_window_ && windows == 0) continue;
    *static_cast<volatile char*>(address(slot)) = 0;
    discard_pages(address(slot), kHugePage);
  }
  empty_.give({0, single});
  if (windows > 0) empty_windows_.give({0, windows});
}

Run PagePool::take_empty(std::uint32_t pages) {
  if (!empty_.fits(pages)) fatal("page pool exhausted", EOVERFLOW);
  return empty_.take(pages);
}

Run PagePool::take(std::uint32_t most) { return warm_.count() > 0 ? warm_.take(most) : take_empty(most); }

Run PagePool::take_whole(std::uint32_t pages) { return warm_.fits(pages) ? warm_.take(pages) : take_empty(pages); }

// The protection goes first: it is there when the pages can be seen.
void PagePool::show(Run run, char* to, int protection) {
  char* home = address(run.first);
  if (protection != (PROT_READ | PROT_WRITE)) must_protect(home, run.count * page_, protection);
  must_move_pages(home, to, run.count * page_);
}

void PagePool::move_home(char* from, Run run) {
  must_move_pages(from, address(run.first), run.count * page_);
  must_protect(address(run.first), run.count * page_, PROT_READ | PROT_WRITE);
}

void PagePool::bring_home(char* from, Run run) {
  move_home(from, run);
  warm_.give(run);
}

void PagePool::bring_home_empty(char* from, Run run) {
  discard_pages(from, run.count * page_);
  move_home(from, run);
  empty_.give(run);
}

bool PagePool::grow() {
  if (empty_windows_.count() == 0) return false;
  Run window{first_window_ + empty_windows_.take(1).first * kStride * window_, window_};
  *static_cast<volatile char*>(address(window.first)) = 0;
  warm_.give(window);
  return true;
}

void PagePool::discard(Run run) {
  discard_pages(address(run.first), run.count * page_);
  if (run.first >= first_window_ && run.count == window_) {
    empty_windows_.give({(run.first - first_window_) / (kStride * window_), 1});
  } else {
    empty_.give(run);
  }
}

std::uint64_t PagePool::release_windows(std::uint64_t bytes) {
  std::uint64_t released = 0;
  for (; released < bytes && warm_.fits(window_); released += kHugePage) discard(warm_.take(window_));
  return released;
}

std::uint64_t PagePool::release(std::uint64_t bytes) {
  std::uint64_t released = 0;
  while (released < bytes && warm_.count() > 0) {
    Run run = warm_.take_shortest(static_cast<std::uint32_t>(round_up(bytes - released, page_) / page_));
    discard(run);
    released += run.count * page_;
  }
  return released;
}

}  // namespace ebbtide
