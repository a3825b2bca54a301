#include "region.hpp"

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

namespace ebbtide {

namespace {
constexpr int kAccessible = PROT_READ | PROT_WRITE;
constexpr std::uint64_t kReadOnly = std::uint64_t{1} << 63;
constexpr std::uint32_t kPagesPerMove = 16;  // [Note: scattered pages]
}  // namespace

Region::Region(std::size_t bytes, std::size_t page)
    : page_(page),
      space_(bytes, kHugePage, PROT_NONE),
      owners_(space_.size() / page * sizeof(BlockId), kSmallPage, kAccessible),
      marks_(space_.size() / page * sizeof(std::uint64_t), kSmallPage, kAccessible),
      sources_(space_.size() / page * sizeof(Slot), kSmallPage, kAccessible),
      vacant_(static_cast<std::uint32_t>(space_.size() / page)),
      cached_(static_cast<std::uint32_t>(space_.size() / page)) {
  vacant_.give({0, static_cast<std::uint32_t>(space_.size() / page)});
  must_reserve(space_.begin(), space_.size());  // as vacant places will be later, so that they merge
  if (!set_inherited(sources_.begin(), sources_.size(), false)) fatal("madvise(MADV_WIPEONFORK)", errno);
}

Run Region::take_vacant(std::uint32_t pages) {
  if (!vacant_.fits(pages)) fatal("moving pages: the arena's address space is used up", EOVERFLOW);
  Run run = vacant_.take(pages);
  high_water_ = std::max<std::uint64_t>(high_water_, run.first + run.count);
  return run;
}

std::uint64_t Region::owned_with(std::uint32_t pages) const {
  std::uint64_t end = high_water_;
  while (end > 0 && owner(static_cast<Slot>(end - 1)) == kNoBlock) --end;
  return std::max<std::uint64_t>(end, (cached_.fits(pages) ? cached_ : vacant_).best(pages) + std::uint64_t{pages});
}

// --- memory areas

bool Region::continues(Slot place) const {
  std::uint64_t before = mark(place - 1);
  return mark(place) == before + (before != 0 ? 1 : 0);
}

std::uint64_t Region::areas_beginning(Run run) const {
  std::uint64_t count = 0;
  Slot after = std::min<Slot>(run.first + run.count, static_cast<Slot>(space_.size() / page()));
  for (Slot place = std::max<Slot>(run.first, 1); place < after; ++place) count += continues(place) ? 0 : 1;
  return count;
}

std::uint64_t Region::ends(Run run) const { return areas_beginning({run.first, run.count + 1}); }

std::uint64_t Region::ends_at_sides(Run run) const {
  return areas_beginning({run.first, 1}) + areas_beginning({run.first + run.count, 1});
}

// Pages side by side as they were made, or none: nothing ends within.
void Region::set_marks(Run run, std::uint64_t first) {
  areas_ -= ends_at_sides(run);
  std::uint64_t* marks = &mark(run.first);
  for (std::uint32_t i = 0; i < run.count; ++i) marks[i] = first == 0 ? 0 : first + i;
  areas_ += ends_at_sides(run);
}

// All of them have the same protection.
void Region::mark_read_only(Run run, bool read_only) {
  areas_ -= ends_at_sides(run);
  for (std::uint64_t& m : std::span(&mark(run.first), run.count)) m = read_only ? m | kReadOnly : m & ~kReadOnly;
  areas_ += ends_at_sides(run);
}

int Region::areas_more_without(Run run) const {
  Slot after = run.first + run.count;
  int sides = (run.first > 0 && mark(run.first - 1) != 0 ? 1 : 0) + (after < space_.size() / page() && mark(after) != 0 ? 1 : 0);
  return sides - static_cast<int>(ends(run));
}

std::uint64_t Region::merge_areas() {
  std::uint64_t pages = 0;
  cached_.take_all([&](Run run) { return areas_more_without(run) < 0; },
                   [&](Run run) {
                     make_vacant(run);
                     pages += run.count;
                   });
  return pages * page();
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
    must_move_pages(address(rest.first), address(to), n * page());
    set_marks({to, n}, mark(rest.first));
    set_marks({rest.first, n}, 0);
    rest = {rest.first + n, rest.count - n};
    to += n;
  }
}

// Inaccessible, and without pages.
void Region::empty(Run run) {
  must_reserve(address(run.first), run.count * page());
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
  must_map(address(run.first), run.count * page(), huge);
  *static_cast<volatile char*>(address(run.first)) = 0;
  set_marks(run, new_numbers(run.count));
}

// Whether new pages cost less than to move these.
bool Region::scattered(Run run) const {
  if (page() == kHugePage || !populates_) return false;
  return (1 + areas_beginning({run.first + 1, run.count - 1})) * kPagesPerMove > run.count;
}

// By one call; touched one by one they would take a page fault each.
void Region::make_at_once(Run run) {
  make(run, false);
  must_populate(address(run.first), run.count * page());
}

Run Region::allocate_pages(std::uint32_t pages, bool sparing) {
  if (cached_.fits(pages)) return cached_.take(pages);
  Run taken = take_vacant(pages);
  give_pages(taken, sparing);
  return taken;
}

void Region::give_pages(Run run, bool sparing) {
  Run rest = run;
  std::uint32_t renewed = 0;
  for (std::uint32_t missing = run.count; missing > 0 && cached_.count() > 0;) {
    Run from = cached_.take(missing);
    missing -= from.count;
    if (!sparing && !scattered(from)) {
      move(from, rest.first);
      rest = {rest.first + from.count, rest.count - from.count};
    } else if (!sparing) {
      renewed += from.count;
    }
    make_vacant(from);
  }
  make(rest, page() == kHugePage);
  if (renewed > 0) must_populate(address(rest.first), renewed * page());
}

void Region::give_new(Run run) { make(run, page() == kHugePage); }

void Region::unmap(Run run) {
  must_protect(address(run.first), run.count * page(), PROT_NONE);  // a page moved from under a readable address reads as zeros
  Run to = take_vacant(run.count);
  if (scattered(run)) {
    empty(run);
    make_at_once(to);
  } else {
    move(run, to.first);
    empty(run);
    make_writable(to);
  }
  cached_.give(to);
}

void Region::hand_over(Run from, Run to) {
  move(from, to.first);
  empty(from);
}

bool Region::make_read_only(Run run) {
  bool done = protect(address(run.first), run.count * page(), PROT_READ);
  if (done) mark_read_only(run, true);
  return done;
}

void Region::make_writable(Run run) {
  must_protect(address(run.first), run.count * page(), kAccessible);
  mark_read_only(run, false);
}

bool Region::let_read(const void* p) {
  if (mark(static_cast<Slot>(place_of(p))) != 0) return true;  // it has just been taken
  auto page = reinterpret_cast<std::uintptr_t>(p) / kSmallPage * kSmallPage;
  return protect(reinterpret_cast<void*>(page), kSmallPage, PROT_READ);
}

bool Region::is_read_only(Run run) const { return (mark(run.first) & kReadOnly) != 0; }

void Region::begin_fill(Run run) {
  for (std::uint32_t done = 0; done < run.count;) {
    Run from = cached_.take(run.count - done);
    if (from.count == 0) {
      make(from = take_vacant(run.count - done), page() == kHugePage);
    } else if (scattered(from)) {
      empty(from);
      make_at_once(from);
    }
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
  must_protect(space_.begin(), high_water() * page(), PROT_NONE);
  set_inherited(sources_.begin(), sources_.size(), true);  // a child's child has what the child has
}

void Region::show(Run run) { must_protect(address(run.first), run.count * page(), kAccessible); }

void Region::come(Slot first, void* pages, std::size_t bytes) {
  must_place(pages, address(first), bytes);
  source(first) = first + 1;
}

bool Region::grow(std::uint64_t bytes) {
  auto window = static_cast<std::uint32_t>(kHugePage / page());
  auto pages = static_cast<std::uint32_t>(round_up(bytes, kHugePage) / page());
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

std::uint64_t Region::release_cached(std::uint64_t bytes, std::uint32_t pages_kept) {
  bytes = std::min<std::uint64_t>(bytes, (cached_.count() - std::min(pages_kept, cached_.count())) * page());
  std::uint64_t released = 0;
  while (released < bytes) {
    auto most = static_cast<std::uint32_t>(round_up(bytes - released, page()) / page());
    // Of small pages a long run, which is likeliest to be whole huge pages to the kernel; of huge ones scattered ones.
    Run run = page() < kHugePage ? cached_.take(most) : cached_.take_shortest(most);
    make_vacant(run);
    released += run.count * page();
  }
  return released;
}

}  // namespace ebbtide
