// Birth, death and use of storages. Moving them is in moves.cpp, finding room in room.cpp, reading the figures in counters.cpp.
#include "arena.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "stall_scope.hpp"

namespace ebbtide {

namespace {

struct ThreadStack : OperatorStack {
  ~ThreadStack() {
    if (arena != nullptr) arena->forget(*this);
  }
};
thread_local ThreadStack this_thread;

}  // namespace

OperatorStack& this_operator_stack() { return this_thread; }

Arena::Arena(const Options& options)
    : options_(options),
      userfault_(options.userfault ? Userfault::open() : nullptr),
      most_areas_(areas_for_arena(options.most_areas)),
      huge_(options.huge_region_bytes, kHugePage, options.spill_directories, userfault_.get()),
      small_(options.small_region_bytes, kSmallPage, options.spill_directories, userfault_.get()),
      candidate_memory_(BlockTable::kCapacity * sizeof(Candidate), kSmallPage, PROT_READ | PROT_WRITE),
      candidates_(reinterpret_cast<Candidate*>(candidate_memory_.begin()), BlockTable::kCapacity),
      file_version_memory_(BlockTable::kCapacity * sizeof(std::uint32_t), kSmallPage, PROT_READ | PROT_WRITE,
                           Reservation::kShared),
      file_versions_(reinterpret_cast<std::atomic<std::uint32_t>*>(file_version_memory_.begin()), BlockTable::kCapacity),
      refetch_memory_(BlockTable::kCapacity * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE),
      refetches_(reinterpret_cast<BlockId*>(refetch_memory_.begin()), BlockTable::kCapacity),
      chaos_rate_(options.chaos_rate),
      chaos_state_(options.chaos_seed * 2 + 1),
      watchdog_ns_(options.watchdog_ns),
      replay_(blocks_) {
  reserved_since_ns_ = resident_since_ns_ = peaks_reset_ns_ = progress_ns_ = now_ns();
  for (unsigned i = 0; i < options.io_threads; ++i) threads_.emplace_back([this, i] { io_loop(i); });
  threads_.emplace_back([this] { govern(); });
  if (userfault_ != nullptr) userfault_->start(*this);
}

Arena::~Arena() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    for (OperatorStack* stack : stacks_) stack->arena = nullptr;
    work_.notify_all();
    governor_.notify_all();
    changed();
  }
  for (std::thread& thread : threads_) thread.join();
  if (userfault_ != nullptr) userfault_->stop();
}

// --- storages

BlockId Arena::find(const void* p) {
  if (huge_.contains(p)) return huge_.owner(p);
  if (small_.contains(p)) return small_.owner(p);
  return kNoBlock;
}

BlockId Arena::find_live(const void* p) {
  BlockId id = find(p);
  return id != kNoBlock && blocks_[id].state != State::Dead ? id : kNoBlock;
}

void* Arena::allocate(std::size_t nbytes) {
  Lock lock(mutex_);
  begin_stretch();
  chaos();
  spare_areas();
  Shape shape = shape_of(nbytes);
  Region& r = region(shape);
  reserve_spill(nbytes, shape);
  bool found_room = try_claim(shape);
  if (!found_room && !claim(lock, shape)) spill_full(nbytes);
  Run place = r.allocate_pages(shape.pages, areas_run_short());
  BlockId id = blocks_.create();
  if (id == kNoBlock) {
    r.free_pages(place);
    throw ArenaError("too many storages; manage only larger ones (EBBTIDE_MIN_STORAGE)");
  }
  r.set_owner(place, id);

  Block& b = blocks_[id];
  b.address = r.address(place.first);
  b.nbytes = nbytes;
  b.paged_bytes = shape.bytes();
  b.shape = shape;
  b.place = place;
  b.state = State::Dirty;
  b.kind = tape_.in_step() ? Kind::Activation : Kind::Other;
  b.born_in_step = tape_.in_step();
  b.transient = !found_room;
  b.last_use = ++stamp_;
  file_changes(id);
  blocks_.add_live(id);
  live_ += nbytes;
  account_resident(static_cast<std::int64_t>(b.paged_bytes));
  counters_.live_peak = std::max(counters_.live_peak, live_);
  bool in_operator = this_thread.arena == this && !this_thread.operators.empty();
  born(id, in_operator);
  if (in_operator) pin_operand(this_thread, id, Access::Write, true, nbytes);
  if ((pressure_ || policy_.ahead_of_pressure) && !replay_.active()) evict_ahead();
  return b.address;
}

// Space in the spill file for a new block, before it can be needed.
void Arena::reserve_spill(std::size_t nbytes, const Shape& shape) {
  Region& r = region(shape);
  if (!r.has_space(shape.pages)) throw ArenaError("the arena's address space is used up");
  if (limit_ == 0 || live_ + nbytes <= limit_) return;
  std::uint64_t needed = (r.high_water() + shape.pages) * r.page();
  if (int error = r.spill().reserve(needed); error != 0) {
    throw ArenaError(std::string("cannot reserve ") + BytesText(needed).text + " in the spill directory " +
                     r.spill().failed_directory() + ": " + std::strerror(error) + "; " + cure_of_spill(error));
  }
}

void Arena::spill_full(std::size_t nbytes) {
  throw ArenaError(std::string("no room for ") + BytesText(nbytes).text + ": writing to the spill directory " +
                   spill_failed_->failed_directory() + " failed (" + std::strerror(spill_error_) + "); " +
                   cure_of_spill(spill_error_));
}

void Arena::release(void* address) {
  Lock lock(mutex_);
  if (in_child_) return;
  spare_areas();  // pages that were read-only are writable when they are cached
  BlockId id = find_live(address);
  if (id == kNoBlock) fatal("release of an address that is no storage", EINVAL);
  Block& b = blocks_[id];
  begin_stretch();
  flush_traffic(b);
  died(id);
  file_changes(id);
  blocks_.remove_live(id);
  live_ -= b.nbytes;
  ++b.generation;
  if (b.pins > 0 && this_thread.arena == this && !this_thread.operators.empty() && b.pinned_by == this_thread.innermost()) {
    this_thread.operators.back().bytes -= b.paged_bytes;
  }
  b.pins = 0;
  if (b.state == State::Writing) cancel(id);
  bool has_pages = b.state == State::Dirty || b.state == State::Clean;
  if (has_pages) account_resident(-static_cast<std::int64_t>(b.paged_bytes));
  b.state = State::Dead;
  if (b.transfer.busy()) {
    b.released = true;  // its place in the file is still being written or read [Note: invariants, I4]
  } else if (has_pages) {
    free_pages(id);
  } else {
    free_address(id);
  }
  changed();
  start_prefetches();
}

// Its pages go back to the kernel.
void Arena::decommit(const Block& b) {
  region(b).decommit(b.place);
  account(-static_cast<std::int64_t>(b.paged_bytes));
}

// A dead block's pages are the next one's, unless a forked child may still see them: recycled, they would be copied.
void Arena::free_pages(BlockId id) {
  Block& b = blocks_[id];
  Region& r = region(b);
  if (b.inherited) {
    decommit(b);
    return free_address(id);
  }
  if (b.read_only) r.make_writable(b.place);
  r.set_owner(b.place, kNoBlock);
  r.free_pages(b.place);
  blocks_.destroy(id);
}

// A dead block without pages.
void Arena::free_address(BlockId id) {
  Region& r = region(blocks_[id]);
  r.set_owner(blocks_[id].place, kNoBlock);
  r.free_address(blocks_[id].place);
  blocks_.destroy(id);
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

std::uint64_t Arena::size_of(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  return id == kNoBlock ? 0 : blocks_[id].nbytes;
}

// --- operators

void Arena::enter(const char* name, std::span<const Operand> operands, Work work) {
  Lock lock(mutex_);
  OperatorStack& stack = this_thread;
  if (stack.arena != this) {
    stack.arena = this;
    stacks_.push_back(&stack);
  }
  begin_stretch();
  tick(name, stack.operators.size());
  stack.operators.push_back({name, work, ++serial_, stack.pins.size()});
  tick_stamp_ = ++stamp_;
  chaos();
  std::size_t first = stack.pins.size();
  for (const Operand& operand : operands) {
    BlockId id = find_live(operand.address);
    if (id != kNoBlock && blocks_[id].pinned_by != serial_) pin_operand(stack, id, operand.access, false, operand.moved);
  }
  // Start what can start at once, then wait for each: the reads overlap.
  for (std::size_t i = first; i < stack.pins.size(); ++i) {
    BlockId id = stack.pins[i].id;
    if (blocks_[id].state == State::Absent && claim_for_fetch(blocks_[id])) start_read(id, true);
  }
  for (std::size_t i = first; i < stack.pins.size(); ++i) {
    Block& b = blocks_[stack.pins[i].id];
    if (b.generation != stack.pins[i].generation) continue;
    if (b.state != State::Absent && b.state != State::Reading) continue;
    StallScope stall(*this);
    bool prefetched = b.prefetched;
    stall.begin(prefetched ? Stall::LatePrefetch : Stall::DemandFetch, b.recorded);
    std::int64_t since = now_ns();
    ensure_resident(lock, stack.pins[i].id);  // an error is not lost: the operator's own access meets it again
    if (prefetched) replay_.was_late(b, stack.pins[i].id, now_ns() - since);
  }
  start_prefetches();
}

void Arena::pin_operand(OperatorStack& stack, BlockId id, Access access, bool born_here, std::uint64_t moved) {
  Block& b = blocks_[id];
  Operator& op = stack.operators.back();
  stack.pins.push_back({id, b.generation, b.pinned_by, b.recorded, tape_.clock().tick, access, born_here, moved});
  ++b.pins;
  b.pinned_by = op.serial;
  ++stamp_;
  if (++accesses_ % policy_.sees_every == 0) b.last_use = stamp_;
  op.bytes += b.paged_bytes;
  op.used += std::min<std::uint64_t>(access == Access::ReadWrite ? moved / 2 : moved, b.paged_bytes);
  if (!born_here) op.largest = std::max(op.largest, b.paged_bytes);
  op.peak = std::max(op.peak, op.bytes);
}

// What an inner operator made belongs to the one that called it: its kernel is about to fill it.
void Arena::exit() {
  Lock lock(mutex_);
  OperatorStack& stack = this_thread;
  if (stack.arena != this || stack.operators.empty()) return;
  begin_stretch();
  Operator op = stack.operators.back();
  stack.operators.pop_back();
  ++stamp_;
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
      if (b.generation == pin.generation) evict_after_use(pin.id);
    }
  }
  stack.pins.resize(kept);
  if (op.work == Work::Itself) remember_need(op.name, op.peak, op.used, op.largest);
  if (limit_ != 0 && reserved_ > limit_) trim();
  changed();
}

void Arena::unpin_operand(const Pin& pin) {
  tape_.used(pin.recorded, pin.from_tick, pin.access, pin.moved);
  Block& b = blocks_[pin.id];
  if (b.generation != pin.generation) return;  // it died in the operator
  --b.pins;
  b.pinned_by = pin.pinned_by_before;
  if (pin.born_here) b.born_in_operator = false;
  if (policy_.sees_every == 1) b.last_use = stamp_;
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
  std::erase(stacks_, &stack);
}

// --- settings

void Arena::set_chaos(double rate, std::uint64_t seed) {
  Lock lock(mutex_);
  chaos_rate_ = rate;
  chaos_state_ = seed * 2 + 1;
}

void Arena::set_watchdog(std::int64_t ns) {
  Lock lock(mutex_);
  watchdog_ns_ = ns;
}

}  // namespace ebbtide
