#include "page_source.hpp"

#include <cerrno>

namespace ebbtide {

// Pages that the kernel first saw as one memory area are merged into one again whenever they lie side by side as they
// did here, and so move by one mremap; it remembers that from the first touch on. So an area is touched before
// it is split (and the page given back).
PageSource::PageSource(std::size_t page, std::uint32_t single, std::uint32_t windows)
    : page_(page),
      window_(static_cast<std::uint32_t>(kHugePage / page)),
      first_window_(static_cast<Slot>(round_up(single, window_))),
      space_((first_window_ + std::size_t{windows} * window_) * page, kHugePage, PROT_READ | PROT_WRITE),
      single_(static_cast<std::uint32_t>(space_.size() / page)),
      windows_(windows) {
  set_inherited(space_.begin(), space_.size(), false);
  std::size_t singles = first_window_ * page;
  madvise(space_.begin(), singles, page < kHugePage ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  madvise(space_.begin() + singles, space_.size() - singles, MADV_HUGEPAGE);
  for (std::size_t at : {std::size_t{0}, singles}) {
    if (at == space_.size()) continue;
    *static_cast<volatile char*>(space_.begin() + at) = 0;
    discard_pages(space_.begin() + at, kHugePage);
  }
  single_.give({0, single});
  if (windows > 0) windows_.give({0, windows});
}

Run PageSource::take(std::uint32_t most) {
  Run run = single_.take(most);
  if (run.count == 0) fatal("taking a page: none is left", EOVERFLOW);
  return run;
}

Run PageSource::take_window() {
  Run window = windows_.take(1);
  return {first_window_ + window.first * window_, window.count * window_};
}

void PageSource::give(Run run) {
  bool whole_window = run.first >= first_window_ && run.count == window_ && (run.first - first_window_) % window_ == 0;
  if (whole_window) {
    windows_.give({(run.first - first_window_) / window_, 1});
  } else {
    single_.give(run);
  }
}

}  // namespace ebbtide
