#include "room.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace ebbtide {

namespace {
constexpr std::int64_t kTrimPause = 1'000'000'000;
constexpr int kWriteTries = 16;  // rounds of evictions, each with a write that fails, before no room is had
}  // namespace

Room::Room(BlockTable& blocks, FastMemory& memory, Areas& areas, Tiers& tiers, Budget& budget, Mover& mover, Moves& moves,
           Victims& victims, const OperatorStacks& stacks, const Stretch& stretch, StallClock& stalls, std::int64_t watchdog_ns,
           bool (*unpins_come)(), void (*ask_to_make)(const void*, bool))
    : blocks_(blocks),
      memory_(memory),
      areas_(areas),
      tiers_(tiers),
      budget_(budget),
      mover_(mover),
      moves_(moves),
      victims_(victims),
      stacks_(stacks),
      stretch_(stretch),
      stalls_(stalls),
      watchdog_(watchdog_ns),
      unpins_come_(unpins_come),
      ask_to_make_(ask_to_make),
      pages_migrate_(tiers.in_place_bytes() > 0) {}

void Room::release_cached(std::uint64_t bytes, const Shape& shape) {
  budget_.account(-static_cast<std::int64_t>(memory_.release_cached(bytes, shape)));
}

// --- claims

bool Room::try_claim(Shape shape) {
  budget_.measure_if_due();
  for (;;) {
    std::uint64_t limit = budget_.bounded() ? budget_.limit() : ~std::uint64_t{0}, reserved = budget_.reserved();
    std::uint64_t fresh = memory_.fresh_bytes(shape);
    // New small pages are had cheapest by whole windows. But the kernel makes one huge page of a window, and moves that to
    // another node whole, whoever's its parts are.
    bool by_windows = shape.page == kSmallPage && fresh > 0 && !pages_migrate_;
    std::uint64_t window = by_windows ? round_up(fresh, kHugePage) : 0;
    if (window > 0 && reserved + window <= limit && memory_.small().grow(window)) {
      budget_.account(static_cast<std::int64_t>(window));
      continue;
    }
    if (reserved + std::max(fresh, window) > limit) {
      release_cached(reserved + std::max(fresh, window) - limit, shape);
      if (budget_.reserved() < reserved) continue;
    }
    if (reserved + fresh > limit) return false;
    budget_.account(static_cast<std::int64_t>(fresh));
    return true;
  }
}

bool Room::try_claim_new(std::uint64_t bytes) {
  budget_.measure_if_due();
  std::uint64_t limit = budget_.bounded() ? budget_.limit() : ~std::uint64_t{0};
  if (budget_.reserved() + bytes > limit) release_cached(budget_.reserved() + bytes - limit);
  if (budget_.reserved() + bytes > limit) return false;
  budget_.account(static_cast<std::int64_t>(bytes));
  return true;
}

bool Room::try_fetch(BlockId id, bool urgent) {
  const Block& b = blocks_[id];
  if (b.state == State::Unmade) return false;
  if (!b.is_absent()) {
    if (!moves_.may_migrate(b) || !try_claim_new(b.paged_bytes)) return false;
    moves_.start_migration(id, kFast, urgent);
  } else {
    if (!areas_.left() || !try_claim(b.shape)) return false;
    moves_.start_read(id, urgent);
  }
  return true;
}

// Over the budget, rather than for ever, but not over what the machine has: its kernel would kill the process.
Claim Room::claim(Lock& lock, Shape shape) {
  StallScope stall(stalls_);
  std::int64_t since = 0;
  for (int failed = 0; !try_claim(shape);) {
    stall.begin(Stall::Room);
    if (since == 0) since = now_ns();
    Attempt attempt = make_room(lock, shape, since);
    if (attempt == Attempt::TiersFailed) {
      if (++failed < kWriteTries) continue;
      if (!off_the_record) return Claim::TiersTakeNoMore;
    }
    if (attempt != Attempt::Progress) {
      if (!budget_.machine_has(memory_.fresh_bytes(shape))) {
        ++refused_;
        return Claim::MachineHasNoMore;
      }
      claim_over_budget(shape, attempt);
      return Claim::Granted;
    }
  }
  return Claim::Granted;
}

// The last resort: loudly, because the alternatives are to hang or to lose something.
void Room::claim_over_budget(Shape shape, Attempt why) {
  budget_.account(static_cast<std::int64_t>(memory_.fresh_bytes(shape)));
  bool stuck = why == Attempt::Stuck;
  if (stuck) stuck_at_ = std::max(stuck_at_, budget_.reserved() - memory_.cached_bytes());
  if (over_budget_) return;
  over_budget_ = true;
  const char* reason =
      stuck && stretch_.thrashes()        ? "a compiled kernel or an operator cycles through more storages than the budget holds"
      : stuck && victims_.areas_refused() ? "what is in memory is small and scattered, and memory areas run short; "
                                            "as root: sysctl vm.max_map_count=1000000"
      : stuck                             ? "an operator needs more at once than the budget holds"
      : why == Attempt::TimedOut          ? "the slower tiers did not answer for as long as the watchdog waits"
                                          : "the slower tiers take no more, and a storage must come back";
  std::snprintf(trouble_, sizeof trouble_, "over budget: %s (tensors have %s of it, and hold %s now)", reason,
                BytesText(budget_.limit()).text, BytesText(budget_.reserved()).text);
  say(trouble_);
}

bool Room::waited_too_long(std::int64_t since) { return watchdog_.has_expired(now_ns(), std::max(since, mover_.progress_ns())); }

// Starts evictions that will make room for a shape, and waits for one change. The caller tries its claim again. Rather
// than go over the budget, a process of ours that some of it is set aside for is ended.
Room::Attempt Room::make_room(Lock& lock, Shape shape, std::int64_t since) {
  pressure_ = waited_in_step_ = true;
  struct Waiting {
    unsigned& count;
    explicit Waiting(unsigned& c) : count(c) { ++count; }
    ~Waiting() { --count; }
  } waiting(waiting_);
  std::uint64_t needed = shape.bytes() + budget_.over();
  std::uint64_t coming = budget_.free() + memory_.cached_bytes() + moves_.evicting();
  std::uint64_t failures = tiers_.failures();
  if (coming < needed) {
    std::uint64_t batch = batch_bytes(victims_.policy(), budget_.limit());
    std::uint64_t started = victims_.start_evictions(needed - coming + batch, Shield::Outer);
    if (started > 0 && moves_.evicting() == 0) return Attempt::Progress;  // clean ones are evicted at once
    if (tiers_.failures() != failures) return Attempt::TiersFailed;
  }
  std::uint64_t changes = mover_.changes();
  if (mover_.busy() == 0 && !mover_.hushed() && (stretch_.thrashes() || is_standstill(changes))) {
    return budget_.end_aside() ? Attempt::Progress : Attempt::Stuck;
  }
  while (changes == mover_.changes()) {
    mover_.wait(lock, true);
    bool failed = tiers_.failures() != failures;
    if (!failed && !waited_too_long(since)) continue;
    mover_.changed();  // this thread is not one that waits
    return failed ? Attempt::TiersFailed : budget_.end_aside() ? Attempt::Progress : Attempt::TimedOut;
  }
  return Attempt::Progress;
}

// Nothing moves, and this thread finds no room: whether it would wait for threads that wait like it. Then it goes on, and
// its operator ends and makes a change for the others. A thread outside operators holds nothing that others could wait for.
// This thread may be the maker. Then those that wait for it wait like it: operators' own threads, or else one operator, whose
// work a thread outside operators shares.
bool Room::is_standstill(std::uint64_t changes) {
  if (unpins_come_ != nullptr && unpins_come_()) return false;
  if (std::exchange(blocked_since_, changes) != changes) blocked_ = 0;
  bool in_operator = stacks_.are_here();
  std::ptrdiff_t for_maker = std::max(for_maker_, std::min<std::ptrdiff_t>(for_maker_outside_, 1));
  if (stacks_.at_work() <= 1 || blocked_ + in_operator + for_maker >= stacks_.at_work()) return true;
  blocked_ += in_operator;
  return false;
}

void Room::wait_for_maker(Lock& lock, const Block& b, bool to_write, bool again) {
  ask_to_make_(b.address - b.before, to_write);
  std::ptrdiff_t& waiting = stacks_.are_here() ? for_maker_ : for_maker_outside_;
  ++waiting;
  if (!again) mover_.changed();  // a maker that waits for room looks again whom it waits for
  mover_.wait(lock, false);
  --waiting;
}

int Room::ensure_usable(Lock& lock, BlockId id) {
  Block& b = blocks_[id];
  std::uint32_t generation = b.generation;
  std::int64_t since = now_ns();
  RankSet valid = b.valid;
  bool asked = false;
  for (int tries = 0; b.generation == generation;) {
    if (b.state == State::Reading) {
      mover_.wait(lock, false);
      continue;
    }
    if (!b.is_absent()) return 0;
    if (b.state == State::Unmade) {
      ++b.external_pins;  // it stays from when it is made until this thread has seen that
      wait_for_maker(lock, b, false, std::exchange(asked, true));
      if (b.generation == generation) --b.external_pins;
      continue;
    }
    if (tries == kReadTries && b.valid == valid) return b.read_error;
    if (wait_for_areas(lock, since)) continue;
    if (b.transfer.busy()) {  // between two slower tiers
      moves_.give_up_copy(id);
      if (b.transfer.busy()) mover_.wait(lock, false);
      continue;
    }
    bool claimed = try_claim(b.shape);
    if (!claimed) {
      Attempt attempt = make_room(lock, b.shape, since);
      bool wanted = b.generation == generation && b.is_absent() && !b.transfer.busy();
      if (attempt == Attempt::Progress || !wanted) continue;
      claim_over_budget(b.shape, attempt);
    }
    if (std::exchange(valid, b.valid) != b.valid) tries = 0;  // another tier is read
    moves_.start_read(id, true);
    ++tries;
  }
  return 0;
}

void Room::ensure_free(Lock& lock, BlockId id) {
  std::uint32_t generation = blocks_[id].generation;
  for (bool asked = false; blocks_[id].generation == generation && blocks_[id].guards > 0;)
    wait_for_maker(lock, blocks_[id], true, std::exchange(asked, true));
}

// Where no room can be had it stays where it is.
void Room::ensure_fast(Lock& lock, BlockId id) {
  const Block& b = blocks_[id];
  std::uint32_t generation = b.generation;
  std::int64_t since = now_ns();
  for (bool tried = false; b.generation == generation && b.has_pages() && (b.home != kFast || b.migrates());) {
    if (b.transfer.busy()) {
      mover_.wait(lock, false);
    } else if (tried || !moves_.may_migrate(b)) {
      return;
    } else if (try_fetch(id, true)) {
      tried = true;
    } else if (make_room(lock, b.shape, since) != Attempt::Progress || waited_too_long(since)) {
      return;
    }
  }
}

// --- ahead of need

void Room::evict_ahead() {
  if (!budget_.bounded() || budget_.over() > 0) return;
  std::uint64_t coming = budget_.free() + memory_.cached_bytes() + moves_.evicting();
  std::uint64_t wanted = ahead_bytes(victims_.policy(), budget_.limit(), coming);
  if (wanted > 0) victims_.start_evictions(wanted, Shield::None);
}

void Room::after_use(BlockId id) {
  const Block& b = blocks_[id];
  if (!budget_.bounded() || b.pins > 0) return;
  if (b.home != kFast) {
    bool seen = b.last_use > victims_.operator_began();
    if (victims_.policy().promotes && seen && !victims_.follows_schedule() && waiting_ == 0) try_fetch(id);
  } else if (evicts_after_use(victims_.policy(), b.transient) && victims_.evictable(b)) {
    moves_.start_evict(id);
  }
}

// Nobody waits for this, and it is called at the end of every operator: tiers that refused what had to leave, a full disk say,
// are not asked again for a while. An allocation asks them at once.
void Room::trim() {
  if (budget_.over() > 0) release_cached(budget_.over());
  if (budget_.over() > moves_.evicting() && now_ns() >= trims_from_ns_) {
    victims_.start_evictions(budget_.over() - moves_.evicting(), Shield::Outer);
    if (std::exchange(failures_at_trim_, tiers_.failures()) != tiers_.failures()) trims_from_ns_ = now_ns() + kTrimPause;
  }
  if (budget_.over() > 0) release_cached(budget_.over());
}

void Room::end_step() {
  pressure_ = waited_in_step_;
  waited_in_step_ = false;
}

// --- memory areas

void Room::spare_areas() {
  if (std::uint64_t merged = areas_.merge(); merged > 0) budget_.account(-static_cast<std::int64_t>(merged));
  if (!areas_.used_up()) return;
  clear_stretch(memory_.huge().areas() > memory_.small().areas() ? memory_.huge() : memory_.small());
  areas_.cleared();
}

// Evicts place by place, from where it stopped the last time, until a sixteenth of the areas is free or will be. Whatever
// makes no more areas is evicted, counting that its neighbour before it is about to.
void Room::clear_stretch(Region& r) {
  Slot& hand = &r == &memory_.huge() ? cleared_up_to_[0] : cleared_up_to_[1];
  std::uint64_t will_go = 0, failures = tiers_.failures();
  bool before_goes = false;
  for (std::uint64_t walked = 0; walked < r.high_water() && areas_.now() > areas_.clear_to() + will_go;) {
    if (hand >= r.high_water()) hand = 0;
    BlockId id = r.owner(hand);
    Run place = id == kNoBlock ? Run{hand, 1} : blocks_[id].place;
    hand = place.first + place.count;
    walked += place.count;
    bool beside_one_that_goes = std::exchange(before_goes, false);
    if (id == kNoBlock || blocks_[id].home != kFast || !victims_.may_move(blocks_[id]) || victims_.in_use(blocks_[id])) continue;
    if (r.areas_more_without(place) - (beside_one_that_goes ? 1 : 0) > 0) continue;
    std::uint64_t its_own = r.areas_beginning(place);
    if (!moves_.start_evict(id)) {
      if (tiers_.failures() != failures) return;  // the disk is full: it is for all
      continue;
    }
    victims_.request_refetch(id);
    before_goes = blocks_[id].state == State::Writing;
    if (before_goes) will_go += its_own;
  }
}

// Waits for evictions where what comes back might take the last areas; false: there is nothing to wait for, or
// the disk has not answered for too long.
bool Room::wait_for_areas(Lock& lock, std::int64_t since) {
  spare_areas();
  if (!areas_.close_to_the_end() || mover_.busy() == 0 || waited_too_long(since)) return false;
  mover_.wait(lock, true);
  return true;
}

// --- figures

void Room::read(Counters& c) const {
  c.stuck_at_bytes = stuck_at_;
  c.over_budget = over_budget_;
  c.refused = refused_;
  c.message = trouble_;
}

void Room::reset_trouble() {
  over_budget_ = false;
  trouble_[0] = '\0';
}

}  // namespace ebbtide
