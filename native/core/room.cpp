// Finding room: pages that nobody holds, pages that the dead left behind, pages of storages that can wait (victims.cpp).
#include <algorithm>
#include <cstdio>

#include "arena.hpp"
#include "stall_scope.hpp"

namespace ebbtide {

namespace {
constexpr auto kGovernorPeriod = std::chrono::milliseconds(10);
constexpr auto kLookAgain = std::chrono::milliseconds(1);
constexpr std::int64_t kMeasureEvery = 1'000'000;  // ns
constexpr int kWriteTries = 16;  // rounds of evictions, each with a write that fails, before no room is had
}  // namespace

void Arena::account(std::int64_t bytes) {
  std::int64_t now = now_ns();
  counters_.reserved_byte_ns += static_cast<double>(reserved_) * static_cast<double>(now - reserved_since_ns_);
  reserved_since_ns_ = now;
  reserved_ += static_cast<std::uint64_t>(bytes);
  counters_.reserved_peak = std::max(counters_.reserved_peak, reserved_);
  unmanaged_.reserved(reserved_);
}

// The part of reserved bytes that lies under live storages.
void Arena::account_resident(std::int64_t bytes) {
  std::int64_t now = now_ns();
  counters_.resident_byte_ns += static_cast<double>(resident_) * static_cast<double>(now - resident_since_ns_);
  resident_since_ns_ = now;
  resident_ += static_cast<std::uint64_t>(bytes);
  counters_.resident_peak = std::max(counters_.resident_peak, resident_);
}

// What a shape adds to reserved bytes: cached pages are reserved already.
std::uint64_t Arena::fresh_bytes(const Shape& shape) {
  return shape.bytes() - std::min(shape.bytes(), region(shape).cached_bytes());
}

// Grants the pages of a shape; the caller takes them at once.
bool Arena::try_claim(Shape shape) {
  if (process_limit_ != 0 && now_ns() - unmanaged_measured_ns_ > kMeasureEvery) measure_unmanaged();
  for (;;) {
    std::uint64_t limit = limit_ == 0 ? ~std::uint64_t{0} : limit_.load();
    std::uint64_t fresh = fresh_bytes(shape);
    // New small pages are had cheapest by whole windows.
    std::uint64_t window = shape.page == kSmallPage && fresh > 0 ? round_up(fresh, kHugePage) : 0;
    if (window > 0 && reserved_ + window <= limit && small_.grow(window)) {
      account(static_cast<std::int64_t>(window));
    } else if (reserved_ + std::max(fresh, window) > limit &&
               release_cached(reserved_ + std::max(fresh, window) - limit, shape) > 0) {
      continue;
    } else if (reserved_ + fresh <= limit) {
      account(static_cast<std::int64_t>(fresh));
      return true;
    } else {
      return false;
    }
  }
}

bool Arena::claim(Lock& lock, Shape shape) {
  StallScope stall(*this);
  for (int failed = 0; !try_claim(shape);) {
    stall.begin(Stall::Room);
    Outcome outcome = make_room(lock, shape);
    if (outcome == Outcome::SpillFailed) {
      if (++failed == kWriteTries) return false;
      continue;
    }
    if (outcome != Outcome::Progress) {
      claim_over_budget(shape, outcome);
      return true;
    }
  }
  return true;
}

// The last resort: loudly, because the alternatives are to hang or to lose something.
void Arena::claim_over_budget(Shape shape, Outcome why) {
  account(static_cast<std::int64_t>(fresh_bytes(shape)));
  if (why == Outcome::Stuck) counters_.stuck_at_bytes = std::max(counters_.stuck_at_bytes, reserved_ - cached_bytes());
  if (counters_.over_budget) return;
  counters_.over_budget = true;
  bool stuck = why == Outcome::Stuck;
  const char* reason = stuck && stretch_.thrashes
                           ? "a compiled kernel or an operator goes round more storages than the budget holds"
                       : stuck && areas_refused_  ? "what is in memory is small and scattered, and memory areas run short; "
                                                    "as root: sysctl vm.max_map_count=1000000"
                       : stuck                    ? "an operator needs more at once than the budget holds"
                       : why == Outcome::TimedOut ? "the spill file did not answer for as long as the watchdog waits"
                                                  : "the spill file takes no more, and a storage must come back";
  std::snprintf(trouble_, sizeof trouble_, "over budget: %s (budget %s, held now %s)", reason, BytesText(limit_).text,
                BytesText(reserved_).text);
  say(trouble_);
}

// A process of ours that room is set aside for goes before the budget does. Whether there was one.
bool Arena::end_aside() {
  if (aside_process_ == 0 || !kill_child(aside_process_)) return false;
  aside_process_ = 0;
  aside_bytes_ = set_aside_ = 0;
  measure_unmanaged();
  return true;
}

// Starts evictions that will make room for a shape, and waits for one change. The caller tries its claim again.
Arena::Outcome Arena::make_room(Lock& lock, Shape shape) {
  pressure_ = room_waited_in_step_ = true;
  struct Waiting {
    unsigned& count;
    explicit Waiting(unsigned& c) : count(c) { ++count; }
    ~Waiting() { --count; }
  } waiting(waiting_for_room_);
  std::uint64_t needed = shape.bytes();
  if (reserved_ > limit_) needed += reserved_ - limit_;
  std::uint64_t coming = (limit_ > reserved_ ? limit_ - reserved_ : 0) + cached_bytes() + evicting_;
  std::uint64_t failures = write_failures_;
  if (coming < needed) {
    std::uint64_t started = start_evictions(needed - coming + batch_bytes(policy_, limit_), Shield::Outer);
    if (write_failures_ != failures) return Outcome::SpillFailed;
    if (started > 0 && evicting_ == 0) return Outcome::Progress;  // clean ones are evicted at once
  }
  bool others_at_work = std::ranges::count_if(stacks_, [](auto* s) { return !s->operators.empty(); }) > 1;
  if (busy_transfers_ == 0 && !quiet_ && (!others_at_work || stretch_.thrashes)) {
    return end_aside() ? Outcome::Progress : Outcome::Stuck;
  }
  std::int64_t since = now_ns();
  std::uint64_t changes = changes_;
  do {
    wait(lock, true);
    if (write_failures_ != failures) return Outcome::SpillFailed;
    if (now_ns() - std::max(since, progress_ns_) > watchdog_ns_) {
      return end_aside() ? Outcome::Progress : Outcome::TimedOut;
    }
  } while (changes == changes_);
  return Outcome::Progress;
}

bool Arena::in_use(const Block& b) const {
  return b.pins > 0 && std::ranges::any_of(stacks_, [&](auto* s) { return s->innermost() == b.pinned_by; });
}

void Arena::evict_ahead() {
  if (limit_ == 0 || reserved_ > limit_) return;
  std::uint64_t coming = limit_ - reserved_ + cached_bytes() + evicting_;
  if (std::uint64_t wanted = ahead_bytes(policy_, limit_, coming); wanted > 0) start_evictions(wanted, Shield::None);
}

// An operator that used it has ended.
void Arena::evict_after_use(BlockId id) {
  const Block& b = blocks_[id];
  if (limit_ != 0 && b.pins == 0 && evicts_after_use(policy_, b.transient) && evictable(b)) start_evict(id);
}

void Arena::set_policy(const Policy& policy) {
  Lock lock(mutex_);
  policy_ = policy;
  ready_ = {};
}

// Back under the limit, as far as that is possible without waiting.
void Arena::trim() {
  if (limit_ == 0) return;
  if (reserved_ > limit_) release_cached(reserved_ - limit_, {});
  if (reserved_ > limit_ + evicting_) start_evictions(reserved_ - limit_ - evicting_, Shield::Outer);
  if (reserved_ > limit_) release_cached(reserved_ - limit_, {});
}

// Cached pages that a claim of this shape has no use for go back to the kernel; returns their bytes.
std::uint64_t Arena::release_cached(std::uint64_t bytes, const Shape& shape) {
  std::uint64_t released = 0;
  for (Region* r : {&huge_, &small_}) {
    std::uint64_t useful = r == &region(shape) ? std::min(shape.bytes(), r->cached_bytes()) : 0;
    if (released < bytes) released += r->release_cached(std::min(bytes - released, r->cached_bytes() - useful));
  }
  account(-static_cast<std::int64_t>(released));
  return released;
}

void Arena::set_limits(std::uint64_t arena_bytes, std::uint64_t process_bytes) {
  Lock lock(mutex_);
  arena_limit_ = arena_bytes;
  limit_ = arena_bytes;
  process_limit_ = process_bytes;
  measure_unmanaged();
  trim();
  changed();
}

// What the process holds outside the arena leaves the rest of its bound to the arena. Whether it has just grown.
bool Arena::measure_unmanaged() {
  unmanaged_measured_ns_ = now_ns();
  bool grew = unmanaged_.look(process_resident_bytes(), reserved_);
  if (process_limit_ == 0) return grew;
  std::uint64_t margin = process_limit_ / 128 + (std::uint64_t{4} << 20);
  std::uint64_t taken = unmanaged_.bytes() + margin + set_aside_;
  limit_ = process_limit_ > taken + kHugePage ? process_limit_ - taken : kHugePage;
  if (arena_limit_ != 0) limit_ = std::min(limit_.load(), arena_limit_);
  return grew;
}

void Arena::remeasure_unmanaged() {
  Lock lock(mutex_);
  unmanaged_.forget_step();
  measure_unmanaged();
}

void Arena::set_aside(std::uint64_t bytes, int process) {
  Lock lock(mutex_);
  aside_bytes_ = set_aside_ = bytes;
  aside_process_ = process;
  measure_unmanaged();
  trim();
  changed();
}

// What a process of ours outgrows of its reserve, the arena gives up too.
void Arena::measure_aside() {
  set_aside_ = aside_process_ == 0 ? aside_bytes_ : std::max(aside_bytes_, anonymous_bytes(aside_process_));
}

void Arena::govern() {
  Lock lock(mutex_);
  bool grew = false;
  while (!stopping_) {
    governor_.wait_for(lock, grew ? kLookAgain : kGovernorPeriod);
    if (process_limit_ != 0) {
      measure_aside();
      grew = measure_unmanaged();
    }
    if (limit_ != 0 && reserved_ > limit_ && !quiet_) trim();
    if (options_.on_governor_wake == nullptr) continue;
    lock.unlock();
    options_.on_governor_wake();
    lock.lock();
  }
}

}  // namespace ebbtide
