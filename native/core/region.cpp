#include "region.hpp"

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

namespace ebbtide {

namespace {
constexpr int kAccessible = PROT_READ | PROT_WRITE;
constexpr std::uint64_t kReadOnly = std::uint64_t{1} << 63;
}  // namespace

Region::Region(std::size_t bytes, std::size_t page, const PageBackend& backend)
    : page_(page),
      backend_(backend),
      absent_is_mapped_(backend.keeps_absent_mapped()),
      space_(bytes, kHugePage, PROT_NONE),
      owners_(bytes / page * sizeof(BlockId), kSmallPage, kAccessible),
      marks_(bytes / page * sizeof(std::uint64_t), kSmallPage, kAccessible),
      sources_(bytes / page * sizeof(Slot), kSmallPage, kAccessible),
      cached_(static_cast<std::uint32_t>(bytes / page)),
      vacant_(static_cast<std::uint32_t>(bytes / page)) {
  must_reserve(space_.begin(), space_.size());  // as vacant places will be later, so that they merge
  vacant_.give({0, static_cast<std::uint32_t>(bytes / page)});
  if (!set_inherited(sources_.begin(), sources_.size(), false)) fatal("madvise(MADV_WIPEONFORK)", errno);
}

void Region::set_owner(Run run, BlockId id) { std::fill_n(&owner_entry(run.first), run.count, id + 1); }

Run Region::take_vacant(std::uint32_t pages) {
  if (!vacant_.fits(pages)) fatal("moving pages: the arena's address space is used up", EOVERFLOW);
  Run run = vacant_.take(pages);
  high_water_ = std::max<std::uint64_t>(high_water_, run.first + run.count);
  return run;
}

// --- memory areas

bool Region::continues(Slot place) const {
  std::uint64_t before = mark(place - 1);
  return mark(place) == before + (before != 0 ? 1 : 0);
}

std::uint64_t Region::areas_beginning(Run run) const {
  std::uint64_t count = 0;
  Slot after = std::min<Slot>(run.first + run.count, static_cast<Slot>(space_.size() / page_));
  for (Slot place = std::max<Slot>(run.first, 1); place < after; ++place) count += continues(place) ? 0 : 1;
  return count;
}

std::uint64_t Region::ends(Run run) const { return areas_beginning({run.first, run.count + 1}); }

std::uint64_t Region::ends_at_sides(Run run) const {
  return areas_beginning({run.first, 1}) + areas_beginning({run.first + run.count, 1});
}

// Pages side by side as they were made, or none: nothing ends within.
void Region::set_marks(Run run, std::uint64_t first) {
  areas_ -= absent_is_mapped_ ? ends(run) : ends_at_sides(run);  // what stays mapped may have been left in parts
  std::uint64_t* marks = &mark(run.first);
  for (std::uint32_t i = 0; i < run.count; ++i) marks[i] = first == 0 ? 0 : first + i;
  areas_ += ends_at_sides(run);
}

// All of them have the same protection.
void Region::mark_read_only(Run run, bool read_only) {
  if (absent_is_mapped_) return;
  areas_ -= ends_at_sides(run);
  for (std::uint64_t& m : std::span(&mark(run.first), run.count)) m = read_only ? m | kReadOnly : m & ~kReadOnly;
  areas_ += ends_at_sides(run);
}

int Region::areas_more_without(Run run) const {
  if (absent_is_mapped_) return 0;
  Slot after = run.first + run.count;
  int sides = (run.first > 0 && mark(run.first - 1) != 0 ? 1 : 0) + (after < space_.size() / page_ && mark(after) != 0 ? 1 : 0);
  return sides - static_cast<int>(ends(run));
}

std::uint64_t Region::merge_areas() {
  std::uint64_t pages = 0;
  cached_.take_all([&](Run run) { return areas_more_without(run) < 0; },
                   [&](Run run) {
                     make_vacant(run);
                     pages += run.count;
                   });
  return pages * page_;
}

// --- pages

// How many of these pages, from the first, lie side by side as they were made: the kernel moves them as one.
std::uint32_t Region::together(Run run) const {
  std::uint32_t n = 1;
  while (n < run.count && continues(run.first + n)) ++n;
  return n;
}

void Region::move(Run from, Slot to) {
  for (Run rest = from; rest.count > 0;) {
    std::uint32_t n = together(rest);
    must_move_pages(address(rest.first), address(to), n * page_);
    set_marks({to, n}, mark(rest.first));
    set_marks({rest.first, n}, absent_is_mapped_ ? new_numbers(n) : 0);
    rest = {rest.first + n, rest.count - n};
    to += n;
  }
}

// Inaccessible, and without pages.
void Region::empty(Run run) {
  must_reserve(address(run.first), run.count * page_);
  if (mark(run.first) == 0) return;  // their pages moved away before
  areas_ -= ends(run);
  std::fill_n(&mark(run.first), run.count, 0);
  areas_ += ends_at_sides(run);
}

void Region::make_vacant(Run run) {
  empty(run);
  vacant_.give(run);
}

// For so many pages with one history, which nobody else shares.
std::uint64_t Region::new_numbers(std::uint32_t count) { return std::exchange(next_number_, next_number_ + count + 1); }

// New pages for vacant places. The first is touched at once: from then on the kernel knows them as one area.
void Region::make(Run run, bool huge) {
  if (run.count == 0) return;
  must_map(address(run.first), run.count * page_, huge);
  *static_cast<volatile char*>(address(run.first)) = 0;
  backend_.made(address(run.first), run.count * page_);
  set_marks(run, new_numbers(run.count));
}

Run Region::allocate_pages(std::uint32_t pages, bool sparing) {
  if (cached_.fits(pages)) return cached_.take(pages);
  Run taken = take_vacant(pages);
  Run rest = taken;
  for (std::uint32_t missing = pages; missing > 0 && cached_.count() > 0;) {
    Run from = cached_.take(missing);
    missing -= from.count;
    if (!sparing) {
      move(from, rest.first);
      rest = {rest.first + from.count, missing};
    }
    make_vacant(from);
  }
  make(rest, page_ == kHugePage);
  return taken;
}

Run Region::allocate_new(std::uint32_t pages) {
  Run run = take_vacant(pages);
  make(run, page_ == kHugePage);
  return run;
}

void Region::free_pages(Run run) { cached_.give(run); }

void Region::free_address(Run run) {
  if (absent_is_mapped_) return make_vacant(run);
  vacant_.give(run);
}

void Region::unmap(Run run) {
  backend_.before_move(address(run.first), run.count * page_);
  Run to = take_vacant(run.count);
  move(run, to.first);
  if (!absent_is_mapped_) empty(run);
  make_writable(to);
  cached_.give(to);
}

void Region::decommit(Run run) {
  if (!absent_is_mapped_) return empty(run);
  must_drop_pages(address(run.first), run.count * page_);
}

bool Region::make_read_only(Run run) {
  bool done = backend_.make_read_only(address(run.first), run.count * page_);
  if (done) mark_read_only(run, true);
  return done;
}

void Region::make_writable(Run run) {
  backend_.make_writable(address(run.first), run.count * page_);
  mark_read_only(run, false);
}

void Region::begin_fill(Run run) {
  for (std::uint32_t done = 0; done < run.count;) {
    Run from = cached_.take(run.count - done);
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
      cached_.give(from);
    }
    run = {run.first + from.count, run.count - from.count};
  }
}

void Region::hide() {
  must_protect(space_.begin(), high_water_ * page_, PROT_NONE);
  set_inherited(sources_.begin(), sources_.size(), true);  // a child's child has what the child has
}

void Region::show(Run run) { must_protect(address(run.first), run.count * page_, kAccessible); }

void Region::come(Slot first, void* pages, std::size_t bytes) {
  must_place(pages, address(first), bytes);
  source(first) = first + 1;
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
  cached_.give(run);
  return true;
}

std::uint64_t Region::release_cached(std::uint64_t bytes) {
  std::uint64_t released = 0;
  while (released < bytes && cached_.count() > 0) {
    auto most = static_cast<std::uint32_t>(round_up(bytes - released, page_) / page_);
    // Of small pages a long run, which is likeliest to be whole huge pages to the kernel; of huge ones scattered ones.
    Run run = page_ < kHugePage ? cached_.take(most) : cached_.take_shortest(most);
    make_vacant(run);
    released += run.count * page_;
  }
  return released;
}

}  // namespace ebbtide
