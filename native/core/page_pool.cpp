#include "page_pool.hpp"

#include <algorithm>
#include <cerrno>

#include "types.hpp"

namespace ebbtide {

// Only neighbours that share their first touch are merged by the kernel into one area when they are together again,
// and mremap takes one area at a time. So one page is touched before the pool can be split (and given back).
PagePool::PagePool(std::size_t page, std::uint32_t slots)
    : page_(page), space_(slots * page, kHugePage, PROT_READ | PROT_WRITE), warm_(slots), empty_(slots) {
  madvise(space_.begin(), space_.size(), page == kHugePage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  set_inherited(space_.begin(), space_.size(), false);
  *static_cast<volatile char*>(space_.begin()) = 0;
  discard_pages(space_.begin(), page);
  empty_.give({0, slots});
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

std::uint64_t PagePool::release(std::uint64_t bytes) {
  std::uint64_t released = 0;
  while (released < bytes && warm_.count() > 0) {
    std::uint64_t pages = round_up(bytes - released, page_) / page_;
    Run run = warm_.take_shortest(static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, warm_.count())));
    discard_pages(address(run.first), run.count * page_);
    empty_.give(run);
    released += run.count * page_;
  }
  return released;
}

}  // namespace ebbtide
