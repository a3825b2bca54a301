// Birth, death and use of storages. What happens to them otherwise is in the parts that the arena is made of.
#include "arena.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace ebbtide {

namespace {

struct ThreadStack : OperatorStack {
  Arena* arena = nullptr;
  ~ThreadStack() {
    if (of != nullptr) arena->forget(*this);
  }
};
thread_local ThreadStack this_thread;

}  // namespace

OperatorStack& this_operator_stack() { return this_thread; }

Arena::Arena(const Options& options, Tiers::List slower_tiers)
    : options_(options),
      userfault_(options.userfault ? Userfault::open() : nullptr),
      areas_(options.most_areas),
      memory_(options.huge_region_bytes, options.small_region_bytes, userfault_ != nullptr ? *userfault_ : signals()),
      tiers_(std::move(slower_tiers), {options.huge_region_bytes, options.small_region_bytes}),
      replay_(blocks_, tiers_.last()),
      mover_(blocks_, tape_, options_.hook, tiers_.last(), moves_),
      moves_(
          blocks_, memory_, areas_, tiers_, budget_, mover_, tape_, options_.hook,
          [](void* arena) { static_cast<Arena*>(arena)->step_.start_prefetches(); }, this),
      victims_(blocks_, moves_, areas_, stacks_, replay_, stretch_, recency_, refetches_),
      room_(blocks_, memory_, areas_, tiers_, budget_, mover_, moves_, victims_, stacks_, stretch_, stalls_, options.watchdog_ns),
      step_(blocks_, tape_, replay_, refetches_, stalls_, budget_, mover_, moves_, victims_, room_, stacks_),
      chaos_rate_(options.chaos_rate),
      chaos_state_(options.chaos_seed * 2 + 1) {
  areas_.watch(memory_, userfault_ == nullptr);
  mover_.start(mutex_, options.io_threads * tiers_.last());
  governor_ = std::thread([this] { govern(); });
  if (userfault_ != nullptr) userfault_->start([this](const void* address, bool write) { on_fault(address, write); });
}

Arena::~Arena() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    stacks_.disown();
    governor_wakes_.notify_all();
  }
  mover_.stop(mutex_);
  governor_.join();
  if (userfault_ != nullptr) userfault_->stop();
}

// --- storages

BlockId Arena::find_live(const void* p) const {
  BlockId id = find(p);
  return id != kNoBlock && blocks_[id].state != State::Dead ? id : kNoBlock;
}

void* Arena::allocate(std::size_t nbytes) {
  Lock lock(mutex_);
  begin_stretch();
  chaos();
  room_.spare_areas();
  Shape shape = shape_of(nbytes);
  reserve_ahead(nbytes, shape);
  Rank home = step_.birth(nbytes);
  bool found_room = home == kFast && room_.try_claim(shape);
  if (!found_room && home == kFast && victims_.policy().born_in_place) home = 1;
  BlockId id = home != kFast ? make_in_place(shape, nbytes, home) : kNoBlock;
  bool is_fast = id == kNoBlock;
  if (is_fast) {
    if (!found_room && !room_.claim(lock, shape)) {
      const Tier& tier = tiers_.failed();
      throw ArenaError(std::string("no room for ") + BytesText(nbytes).text + ": writing to " + tier.where() + " failed (" +
                       std::strerror(tiers_.error()) + "); " + tier.cure(tiers_.error()));
    }
    Run place = memory_.region(shape).allocate_pages(shape.pages, areas_.run_short());
    id = make_block(shape, nbytes, place);
    if (id == kNoBlock) {
      memory_.region(shape).free_pages(place);
      throw ArenaError("too many storages; manage only larger ones (EBBTIDE_MIN_STORAGE)");
    }
    budget_.account_resident(static_cast<std::int64_t>(shape.bytes()));
  }
  Block& b = blocks_[id];
  b.kind = tape_.in_step() ? Kind::Activation : Kind::Other;
  b.born_in_step = tape_.in_step();
  b.transient = is_fast && !found_room;
  b.last_use = ++recency_.now;
  moves_.contents_change(id);
  blocks_.add_live(id);
  budget_.account_live(static_cast<std::int64_t>(nbytes));
  bool in_operator = this_thread.of == &stacks_ && !this_thread.operators.empty();
  step_.born(id, in_operator);
  if (in_operator) pin_operand(this_thread, id, Access::Write, true, nbytes);
  if ((room_.short_lately() || victims_.policy().ahead_of_pressure) && !replay_.active()) room_.evict_ahead();
  return b.address;
}

BlockId Arena::make_block(const Shape& shape, std::size_t nbytes, Run place) {
  BlockId id = blocks_.create();
  if (id == kNoBlock) return id;
  Region& r = memory_.region(shape);
  r.set_owner(place, id);
  Block& b = blocks_[id];
  b.address = r.address(place.first);
  b.nbytes = nbytes;
  b.paged_bytes = shape.bytes();
  b.shape = shape;
  b.place = place;
  b.state = State::Dirty;
  return id;
}

// In a tier of at least this rank that is used in place; kNoBlock: none has space.
BlockId Arena::make_in_place(const Shape& shape, std::size_t nbytes, Rank rank) {
  Region& r = memory_.region(shape);
  Run place = r.allocate_new(shape.pages);
  BlockId id = make_block(shape, nbytes, place);
  if (id != kNoBlock) {
    Extent extent = memory_.extent(blocks_[id]);
    Rank home = tiers_.reserve(extent, rank, tiers_.last() + 1u, true, false);
    if (home != kFast && moves_.settle(id, home)) return id;
    if (home != kFast) tiers_.release(extent, bit(home));
    r.set_owner(place, kNoBlock);
    blocks_.destroy(id);
  }
  r.decommit(place);
  r.free_address(place);
  return kNoBlock;
}

// Space in the slowest tier for a new block, before it can be needed: a disk that is full then leaves no way out, unless
// faster tiers take all there is.
void Arena::reserve_ahead(std::size_t nbytes, const Shape& shape) {
  Region& r = memory_.region(shape);
  if (!r.has_space(shape.pages)) throw ArenaError("the arena's address space is used up");
  if (!budget_.bounded() || budget_.live() + nbytes <= budget_.limit()) return;
  Tier& slowest = tiers_[tiers_.last()];
  Extent needed{shape.page == kHugePage ? 0u : 1u, 0, (r.high_water() + shape.pages) * r.page()};
  if (int error = slowest.reserve_ahead(needed); error != 0) {
    if (budget_.live() + nbytes <= tiers_.sure_bytes()) return;  // what has come back keeps its place there
    throw ArenaError(std::string("cannot reserve ") + BytesText(needed.bytes).text + " in " + slowest.where() + ": " +
                     std::strerror(error) + "; " + slowest.cure(error));
  }
}

void Arena::release(void* address) {
  Lock lock(mutex_);
  if (in_child_) return;
  room_.spare_areas();  // pages that were read-only are writable when they are cached
  BlockId id = find_live(address);
  if (id == kNoBlock) fatal("release of an address that is no storage", EINVAL);
  Block& b = blocks_[id];
  begin_stretch();
  flush_traffic(b);
  step_.died(id);
  blocks_.remove_live(id);
  budget_.account_live(-static_cast<std::int64_t>(b.nbytes));
  ++b.generation;
  if (b.pins > 0 && this_thread.of == &stacks_ && !this_thread.operators.empty() && b.pinned_by == this_thread.innermost()) {
    this_thread.operators.back().bytes -= b.paged_bytes;
  }
  b.pins = 0;
  moves_.free(id);
  mover_.changed();
  step_.start_prefetches();
}

void Arena::classify(const void* address, Kind kind) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock) return;
  blocks_[id].kind = kind;
  blocks_[id].classified = true;
}

State Arena::state(const void* address) {
  Lock lock(mutex_);
  BlockId id = find(address);
  return id == kNoBlock ? State::Dead : blocks_[id].state;
}

Ranks Arena::tiers_with(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock) return 0;
  const Block& b = blocks_[id];
  return b.has_pages() && b.home != kFast ? b.valid | bit(b.home) : b.valid;
}

std::uint64_t Arena::size_of(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  return id == kNoBlock ? 0 : blocks_[id].nbytes;
}

// --- operators

void Arena::enter(const char* name, std::span<const Operand> operands, Work work) {
  Lock lock(mutex_);
  ThreadStack& stack = this_thread;
  if (stack.of != &stacks_) {
    this_thread.arena = this;
    stacks_.add(stack);
  }
  begin_stretch();
  step_.tick(name, stack.operators.size());
  stack.operators.push_back({name, work, ++serial_, stack.pins.size()});
  recency_.operator_began = ++recency_.now;
  chaos();
  std::size_t first = stack.pins.size();
  for (const Operand& operand : operands) {
    BlockId id = find_live(operand.address);
    if (id != kNoBlock && blocks_[id].pinned_by != serial_) pin_operand(stack, id, operand.access, false, operand.moved);
  }
  // Start what can start at once, then wait for each: the reads overlap.
  for (std::size_t i = first; i < stack.pins.size(); ++i) {
    BlockId id = stack.pins[i].id;
    const Block& b = blocks_[id];
    if (b.state == State::Absent && !b.transfer.busy()) room_.try_fetch(id, true);
  }
  for (std::size_t i = first; i < stack.pins.size(); ++i) {
    Block& b = blocks_[stack.pins[i].id];
    if (b.generation != stack.pins[i].generation) continue;
    if (b.state != State::Absent && b.state != State::Reading) continue;
    StallScope stall(stalls_);
    bool prefetched = b.prefetched;
    stall.begin(prefetched ? Stall::LatePrefetch : Stall::DemandFetch, b.recorded);
    std::int64_t since = now_ns();
    room_.ensure_usable(lock, stack.pins[i].id);  // an error is not lost: the operator's own access meets it again
    if (prefetched) replay_.was_late(b, stack.pins[i].id, now_ns() - since);
  }
  step_.start_prefetches();
}

void Arena::pin_operand(OperatorStack& stack, BlockId id, Access access, bool born_here, std::uint64_t moved) {
  Block& b = blocks_[id];
  Operator& op = stack.operators.back();
  stack.pins.push_back({id, b.generation, b.pinned_by, b.recorded, tape_.clock().tick, access, born_here, moved});
  ++b.pins;
  b.pinned_by = op.serial;
  ++recency_.now;
  if (++accesses_ % victims_.policy().sees_every == 0) b.last_use = recency_.now;
  op.bytes += b.paged_bytes;
  op.used += std::min<std::uint64_t>(access == Access::ReadWrite ? moved / 2 : moved, b.paged_bytes);
  if (!born_here) op.largest = std::max(op.largest, b.paged_bytes);
  op.peak = std::max(op.peak, op.bytes);
}

// What an inner operator made belongs to the one that called it: its kernel is about to fill it.
void Arena::exit() {
  if (tiers_.packing() != nullptr && tape_.records()) look_at_contents();
  Lock lock(mutex_);
  OperatorStack& stack = this_thread;
  if (stack.of != &stacks_ || stack.operators.empty()) return;
  begin_stretch();
  Operator op = stack.operators.back();
  stack.operators.pop_back();
  ++recency_.now;
  Operator* outer = stack.operators.empty() ? nullptr : &stack.operators.back();
  std::size_t kept = op.first_pin;
  for (std::size_t i = op.first_pin; i < stack.pins.size(); ++i) {
    const Pin& pin = stack.pins[i];
    Block& b = blocks_[pin.id];
    if (pin.born_here && outer != nullptr && b.generation == pin.generation) {
      b.pinned_by = outer->serial;
      outer->bytes += b.paged_bytes;
      outer->peak = std::max(outer->peak, outer->bytes);
      stack.pins[kept++] = pin;
    } else {
      unpin_operand(pin);
      if (b.generation == pin.generation) room_.after_use(pin.id);
    }
  }
  stack.pins.resize(kept);
  if (op.work == Work::Itself) remember_need(op.name, op.peak, op.used, op.largest);
  if (budget_.over() > 0) room_.trim();
  mover_.changed();
}

void Arena::unpin_operand(const Pin& pin) {
  tape_.used(pin.recorded, pin.from_tick, pin.access, pin.moved);
  Block& b = blocks_[pin.id];
  if (b.generation != pin.generation) return;  // it died in the operator
  --b.pins;
  b.pinned_by = pin.pinned_by_before;
  if (pin.born_here) b.born_in_operator = false;
  if (victims_.policy().sees_every == 1) b.last_use = recency_.now;
}

void Arena::remember_need(const char* name, std::uint64_t bytes, std::uint64_t used, std::uint64_t largest) {
  if (bytes <= counters_.largest_operator_bytes) return;
  counters_.largest_operator_bytes = bytes;
  counters_.largest_operator_used = used;
  counters_.largest_operand = largest;
  counters_.largest_operator = name;
}

std::uint64_t Arena::note_need(const char* name, std::span<const Operand> operands) {
  Lock lock(mutex_);
  std::uint64_t bytes = 0, largest = 0;
  for (const Operand& operand : operands) {
    BlockId id = find_live(operand.address);
    if (id == kNoBlock) continue;
    bytes += blocks_[id].paged_bytes;
    largest = std::max(largest, blocks_[id].paged_bytes);
  }
  remember_need(name, bytes, bytes, largest);
  return bytes;
}

void Arena::forget(OperatorStack& stack) {
  Lock lock(mutex_);
  stacks_.forget(stack);
}

}  // namespace ebbtide
