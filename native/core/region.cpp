#include "region.hpp"

#include <algorithm>
#include <cerrno>

namespace ebbtide {

namespace {
constexpr int kAccessible = PROT_READ | PROT_WRITE;
}

Region::Region(std::size_t bytes, std::size_t page, const std::vector<std::string>& spill_directories, Userfault* userfault)
    : page_(page),
      userfault_(userfault),
      space_(bytes, kHugePage, PROT_NONE),
      owners_(bytes / page * sizeof(BlockId), kSmallPage, kAccessible),
      numbers_(bytes / page * sizeof(std::uint64_t), kSmallPage, kAccessible),
      sources_(bytes / page * sizeof(Slot), kSmallPage, kAccessible),
      warm_(static_cast<std::uint32_t>(bytes / page)),
      vacant_(static_cast<std::uint32_t>(bytes / page)),
      spill_(spill_directories) {
  must_reserve(space_.begin(), space_.size());  // as vacant places will be later, so that they merge
  vacant_.give({0, static_cast<std::uint32_t>(bytes / page)});
}

void Region::set_owner(Run run, BlockId id) { std::fill_n(&owner_entry(run.first), run.count, id + 1); }

Run Region::take_vacant(std::uint32_t pages) {
  if (!vacant_.fits(pages)) fatal("moving pages: the arena's address space is used up", EOVERFLOW);
  Run run = vacant_.take(pages);
  high_water_ = std::max<std::uint64_t>(high_water_, run.first + run.count);
  return run;
}

// How many of these pages, from the first, lie side by side as they were made: the kernel moves them as one.
std::uint32_t Region::together(Run run) const {
  std::uint32_t n = 1;
  while (n < run.count && number(run.first + n) == number(run.first) + n) ++n;
  return n;
}

void Region::move(Run from, Slot to) {
  for (Run rest = from; rest.count > 0;) {
    std::uint32_t n = together(rest);
    must_move_pages(address(rest.first), address(to), n * page_);
    std::copy_n(&number(rest.first), n, &number(to));
    rest = {rest.first + n, rest.count - n};
    to += n;
  }
}

void Region::make_vacant(Run run) {
  must_reserve(address(run.first), run.count * page_);
  vacant_.give(run);
}

// New pages for vacant places. The first is touched at once: from then on the kernel knows them as one area.
void Region::make(Run run, bool huge) {
  if (run.count == 0) return;
  must_map(address(run.first), run.count * page_, huge);
  *static_cast<volatile char*>(address(run.first)) = 0;
  if (userfault_ != nullptr) {
    must_populate(address(run.first), run.count * page_);
    userfault_->watch(address(run.first), run.count * page_);
  }
  for (std::uint32_t i = 0; i < run.count; ++i) number(run.first + i) = next_number_++;
  ++next_number_;  // what is made next has another history
}

Run Region::take(std::uint32_t pages) {
  if (warm_.fits(pages)) return warm_.take(pages);
  Run taken = take_vacant(pages);
  Run rest = taken;
  while (rest.count > 0 && warm_.count() > 0) {
    Run from = warm_.take(rest.count);
    move(from, rest.first);
    make_vacant(from);
    rest = {rest.first + from.count, rest.count - from.count};
  }
  make(rest, page_ == kHugePage);
  return taken;
}

void Region::give(Run run) { warm_.give(run); }

void Region::give_place(Run run) {
  if (userfault_ != nullptr) return make_vacant(run);
  vacant_.give(run);
}

// Access goes first: a page moved from under a readable address reads as zeros, unless missing ones are noticed.
void Region::vacate(Run run) {
  if (userfault_ == nullptr) must_protect(address(run.first), run.count * page_, PROT_NONE);
  Run to = take_vacant(run.count);
  move(run, to.first);
  if (userfault_ == nullptr) must_reserve(address(run.first), run.count * page_);
  make_writable(to);
  warm_.give(to);
}

void Region::discard(Run run) {
  if (userfault_ == nullptr) return must_reserve(address(run.first), run.count * page_);
  must_drop_pages(address(run.first), run.count * page_);
}

bool Region::make_read_only(Run run) {
  if (userfault_ == nullptr) return protect(address(run.first), run.count * page_, PROT_READ);
  userfault_->protect(address(run.first), run.count * page_, true);
  return true;
}

void Region::make_writable(Run run) {
  if (userfault_ == nullptr) return must_protect(address(run.first), run.count * page_, kAccessible);
  userfault_->protect(address(run.first), run.count * page_, false);
}

void Region::begin_fill(Run run) {
  for (std::uint32_t done = 0; done < run.count;) {
    Run from = warm_.take(run.count - done);
    if (from.count == 0) make(from = take_vacant(run.count - done), page_ == kHugePage);
    for (std::uint32_t i = 0; i < from.count; ++i) source(run.first + done + i) = from.first + i;
    done += from.count;
  }
}

Run Region::filling(Slot place, std::uint32_t most) const {
  Run run{source(place), 1};
  while (run.count < most && source(place + run.count) == run.first + run.count) ++run.count;
  return run;
}

void Region::end_fill(Run run, bool appear) {
  while (run.count > 0) {
    Run from = filling(run.first, run.count);
    if (appear) {
      if (!make_read_only(from)) fatal("mprotect", errno);  // before it can be seen: the first write is noticed
      move(from, run.first);
      make_vacant(from);
    } else {
      warm_.give(from);
    }
    run = {run.first + from.count, run.count - from.count};
  }
}

bool Region::grow(std::uint64_t bytes) {
  auto window = static_cast<std::uint32_t>(kHugePage / page_);
  auto pages = static_cast<std::uint32_t>(round_up(bytes, kHugePage) / page_);
  if (!vacant_.fits(pages + window - 1)) return false;
  Run around = take_vacant(pages + window - 1);
  Run run{static_cast<Slot>(round_up(around.first, window)), pages};
  Slot end = around.first + around.count;
  if (around.first < run.first) vacant_.give({around.first, run.first - around.first});
  if (run.first + pages < end) vacant_.give({run.first + pages, end - run.first - pages});
  make(run, true);
  for (Slot at = run.first; at < run.first + pages; at += window) *static_cast<volatile char*>(address(at)) = 0;
  warm_.give(run);
  return true;
}

std::uint64_t Region::release(std::uint64_t bytes) {
  std::uint64_t released = 0;
  while (released < bytes && warm_.count() > 0) {
    auto most = static_cast<std::uint32_t>(round_up(bytes - released, page_) / page_);
    // Of small pages a long run, which is likeliest to be whole huge pages to the kernel; of huge ones scattered ones.
    Run run = page_ < kHugePage ? warm_.take(most) : warm_.take_shortest(most);
    make_vacant(run);
    released += run.count * page_;
  }
  return released;
}

}  // namespace ebbtide
