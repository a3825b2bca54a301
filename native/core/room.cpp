// Finding room: pages that nobody holds, pages that the dead left behind, pages of storages that can wait.
#include <algorithm>
#include <cstdio>

#include "arena.hpp"
#include "stall_scope.hpp"

namespace ebbtide {

namespace {
constexpr auto kGovernorPeriod = std::chrono::milliseconds(10);
constexpr std::int64_t kMeasureEvery = 1'000'000;  // ns
}  // namespace

void Arena::account(std::int64_t bytes) {
  std::int64_t now = now_ns();
  counters_.held_byte_ns += static_cast<double>(held_) * static_cast<double>(now - held_since_ns_);
  held_since_ns_ = now;
  held_ += static_cast<std::uint64_t>(bytes);
  counters_.held_peak = std::max(counters_.held_peak, held_);
}

// What a shape adds to held bytes: warm pages are held already.
std::uint64_t Arena::fresh_bytes(const Shape& shape) {
  return shape.bytes() - std::min(shape.bytes(), region(shape).warm_bytes());
}

// Grants the pages of a shape; the caller takes them at once.
bool Arena::try_claim(Shape shape) {
  if (process_limit_ != 0 && now_ns() - rest_measured_ns_ > kMeasureEvery) measure_rest();
  for (;;) {
    std::uint64_t limit = limit_ == 0 ? ~std::uint64_t{0} : limit_.load();
    std::uint64_t fresh = fresh_bytes(shape);
    // New small pages are had cheapest by whole windows.
    std::uint64_t window = shape.page == kSmallPage && fresh > 0 ? round_up(fresh, kHugePage) : 0;
    if (window > 0 && held_ + window <= limit && small_.grow(window)) {
      account(static_cast<std::int64_t>(window));
    } else if (held_ + std::max(fresh, window) > limit &&
               release_warm(held_ + std::max(fresh, window) - limit, shape) > 0) {
      continue;
    } else if (held_ + fresh <= limit) {
      account(static_cast<std::int64_t>(fresh));
      return true;
    } else {
      return false;
    }
  }
}

bool Arena::claim(Lock& lock, Shape shape) {
  StallScope stall(*this);
  while (!try_claim(shape)) {
    stall.begin(Stall::Room);
    Outcome outcome = make_room(lock, shape);
    if (outcome == Outcome::SpillFailed) return false;
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
  if (counters_.over_budget) return;
  counters_.over_budget = true;
  const char* reason = why == Outcome::Stuck      ? "an operator needs more at once than the budget holds"
                       : why == Outcome::TimedOut ? "the spill file did not answer for as long as the watchdog waits"
                                                  : "the spill file takes no more, and a storage must come back";
  std::snprintf(trouble_, sizeof trouble_, "over budget: %s (budget %llu bytes, held now %llu)", reason,
                static_cast<unsigned long long>(limit_.load()), static_cast<unsigned long long>(held_));
  say(trouble_);
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
  if (held_ > limit_) needed += held_ - limit_;
  std::uint64_t coming = (limit_ > held_ ? limit_ - held_ : 0) + warm_bytes() + leaving_;
  std::uint64_t failures = write_failures_;
  if (coming < needed) {
    std::uint64_t started = start_evictions(needed - coming + batch_bytes(policy_, limit_), Shield::Outer);
    if (write_failures_ != failures) return Outcome::SpillFailed;
    if (started > 0 && leaving_ == 0) return Outcome::Progress;  // clean ones leave at once
  }
  bool others_at_work = std::ranges::count_if(stacks_, [](auto* s) { return !s->operators.empty(); }) > 1;
  if (busy_transfers_ == 0 && !quiet_ && !others_at_work) return Outcome::Stuck;
  std::int64_t since = now_ns();
  std::uint64_t changes = changes_;
  do {
    wait(lock, true);
    if (write_failures_ != failures) return Outcome::SpillFailed;
    if (now_ns() - std::max(since, progress_ns_) > watchdog_ns_) return Outcome::TimedOut;
  } while (changes == changes_);
  return Outcome::Progress;
}

// Whether an eviction may begin: it is resident, no move of it is under way, and nobody reaches it without a fault.
bool Arena::may_leave(const Block& b) const {
  return (b.state == State::Dirty || b.state == State::Clean) && !b.transfer.busy() && b.guests == 0;
}

// What no schedule knows is small or short-lived: while one is followed, it leaves last.
std::uint64_t Arena::age(BlockId id) const {
  const Block& b = blocks_[id];
  if (auto ticks = replay_.until_use(b, id)) return *ticks;
  return replay_.active() ? 0 : stamp_ - b.last_use;
}

bool Arena::held_by_operator(const Block& b) const {
  return b.pins > 0 && std::ranges::any_of(stacks_, [&](auto* s) { return s->innermost() == b.pinned_by; });
}

// Starts evicting at least `needed` bytes if it can; the bytes whose eviction began (or, clean, was done).
std::uint64_t Arena::start_evictions(std::uint64_t needed, Shield up_to) {
  std::size_t count = 0;
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    if (!may_leave(b) || held_by_operator(b)) continue;
    Shield shield = b.pins > 0 ? Shield::Outer : b.last_use >= tick_stamp_ ? Shield::ThisTick : Shield::None;
    if (shield <= up_to) candidates_[count++] = {id, shield, b.state == State::Clean, b.held, age(id), b.visitor};
  }
  auto candidates = candidates_.first(count);
  std::size_t victims = choose_victims(candidates, needed, policy_);
  std::uint64_t started = 0;
  for (const Candidate& victim : candidates.first(victims)) {
    if (!start_evict(victim.id)) continue;
    blocks_[victim.id].visitor = true;
    owe(victim.id);
    started += victim.bytes;
  }
  return started;
}

void Arena::evict_ahead() {
  if (limit_ == 0 || held_ > limit_) return;
  std::uint64_t coming = limit_ - held_ + warm_bytes() + leaving_;
  if (std::uint64_t wanted = ahead_bytes(policy_, limit_, coming); wanted > 0) start_evictions(wanted, Shield::None);
}

// An operator that used it has ended.
void Arena::depart(BlockId id) {
  const Block& b = blocks_[id];
  if (limit_ != 0 && b.pins == 0 && departs(policy_, b.visitor) && may_leave(b)) start_evict(id);
}

void Arena::set_policy(const Policy& policy) {
  Lock lock(mutex_);
  policy_ = policy;
}

// Back under the limit, as far as that is possible without waiting.
void Arena::trim() {
  if (limit_ == 0) return;
  if (held_ > limit_) release_warm(held_ - limit_, {});
  if (held_ > limit_ + leaving_) start_evictions(held_ - limit_ - leaving_, Shield::Outer);
  if (held_ > limit_) release_warm(held_ - limit_, {});
}

// Warm pages that a claim of this shape has no use for go back to the kernel; returns their bytes.
std::uint64_t Arena::release_warm(std::uint64_t bytes, const Shape& shape) {
  std::uint64_t released = 0;
  for (Region* r : {&huge_, &small_}) {
    std::uint64_t useful = r == &region(shape) ? std::min(shape.bytes(), r->warm_bytes()) : 0;
    if (released < bytes) released += r->release(std::min(bytes - released, r->warm_bytes() - useful));
  }
  account(-static_cast<std::int64_t>(released));
  return released;
}

void Arena::set_limits(std::uint64_t arena_bytes, std::uint64_t process_bytes) {
  Lock lock(mutex_);
  arena_limit_ = arena_bytes;
  limit_ = arena_bytes;
  process_limit_ = process_bytes;
  measure_rest();
  trim();
  changed();
}

// What the process holds outside the arena, and what that leaves to the arena. Pages that are held but not yet
// touched make the rest look smaller than it is, so its peak over this step and the last is what counts.
void Arena::measure_rest() {
  rest_measured_ns_ = now_ns();
  std::uint64_t resident = process_resident_bytes();
  rest_ = resident > held_ ? resident - held_ : 0;
  rest_high_[0] = std::max(rest_high_[0], rest_);
  if (process_limit_ == 0) return;
  std::uint64_t margin = process_limit_ / 128 + (std::uint64_t{4} << 20);
  std::uint64_t taken = std::max(rest_high_[0], rest_high_[1]) + margin;
  limit_ = process_limit_ > taken + kHugePage ? process_limit_ - taken : kHugePage;
  if (arena_limit_ != 0) limit_ = std::min(limit_.load(), arena_limit_);
}

void Arena::remeasure_rest() {
  Lock lock(mutex_);
  rest_high_[0] = 0;
  measure_rest();
}

void Arena::govern() {
  Lock lock(mutex_);
  while (!stopping_) {
    governor_.wait_for(lock, kGovernorPeriod);
    if (process_limit_ != 0) measure_rest();
    if (limit_ != 0 && held_ > limit_ && !quiet_) trim();
    if (options_.every_tick == nullptr) continue;
    lock.unlock();
    options_.every_tick();
    lock.lock();
  }
}

}  // namespace ebbtide
