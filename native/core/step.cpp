// A step's beginning and end; what it leaves on the tape; what a scheduled step is told to do.
#include "arena.hpp"

namespace ebbtide {

namespace {
constexpr double kRefetchLead = 2.0;  // of the time that a thread takes to fetch it: what is under way comes first
}

// Time lost to stalls since the process began.
std::int64_t Arena::stalled_ns() const {
  std::int64_t sum = stall_clock_.waiting > 0 ? now_ns() - stall_clock_.since : 0;
  for (std::int64_t ns : counters_.stall_ns) sum += ns;
  return sum;
}

Counters Arena::begin_step(bool record) {
  if (in_child_) return {};
  Lock lock(mutex_);
  begin_stretch();
  for (BlockId id : blocks_.live()) flush_traffic(blocks_[id]);  // what happened between steps stays what it was then
  unmanaged_.begin_step(process_resident_bytes(), reserved_);
  measure_unmanaged();
  Counters before = reading();
  tape_.begin(record, reserved_);
  stalled_before_step_ns_ = stalled_ns();
  if (record) list_storages();
  stall_clock_.storage = kNever;
  drop_prefetches();
  replay_.begin();
  for (Command command; replay_.next(command);) carry_out(command);
  start_prefetches();
  return before;
}

Counters Arena::end_step(bool completed) {
  if (in_child_) return {};
  Lock lock(mutex_);
  begin_stretch();
  if (completed) {
    replay_.end(stalled_ns() - stalled_before_step_ns_);
  } else {
    replay_.abandon();
  }
  drop_prefetches();
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    if (!b.classified && b.born_in_step) b.kind = Kind::Other;
    b.born_in_step = false;
    flush_traffic(b);
    tape_.is(b.recorded, b.kind);
    b.recorded = kNever;
  }
  tape_.end(stalled_ns() - stalled_before_step_ns_, now_ns());
  pressure_ = room_waited_in_step_;
  room_waited_in_step_ = false;
  unmanaged_.end_step(process_peak_bytes(), reserved_);
  return reading();
}

std::size_t Arena::load_schedule(Schedule schedule) {
  Lock lock(mutex_);
  return replay_.load(std::move(schedule));
}

void Arena::unload_schedules() {
  Lock lock(mutex_);
  replay_.unload();
}

std::optional<std::size_t> Arena::followed() {
  Lock lock(mutex_);
  return replay_.followed();
}

// What is there before tick 0 goes on the tape.
void Arena::list_storages() {
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    b.recorded = tape_.was_there(b.serial, b.nbytes, b.external_pins > 0);
    b.transfer.asked_tick = 0;
  }
  for (OperatorStack* stack : stacks_) {  // other threads' operators that are under way
    for (Pin& pin : stack->pins) {
      pin.recorded = blocks_[pin.id].generation == pin.generation ? blocks_[pin.id].recorded : kNever;
      pin.from_tick = 0;
    }
  }
}

// An operator begins on this thread, within so many others.
void Arena::tick(const char* name, std::size_t depth) {
  if (!tape_.on_step_thread()) return;
  tape_.tick(name, static_cast<std::uint32_t>(depth), stalled_ns() - stalled_before_step_ns_, reserved_);
  replay_.tick();
  for (Command command; replay_.next(command);) carry_out(command);
  queue_refetches();
}

void Arena::born(BlockId id, bool in_operator) {
  Block& b = blocks_[id];
  b.serial = ++serials_;
  b.born_in_operator = in_operator;
  b.scheduled = kNever;
  b.recorded = tape_.born(b.serial, b.nbytes);
  if (!tape_.on_step_thread()) return;
  bool followed = replay_.active();
  replay_.on_allocate(id, b.nbytes);
  if (followed && !replay_.active()) drop_prefetches();  // they were another step's
}

void Arena::died(BlockId id) {
  Block& b = blocks_[id];
  tape_.died(b.recorded, b.kind, b.born_in_operator, serials_);
  b.recorded = kNever;
}

void Arena::carry_out(const Command& command) {
  BlockId id = replay_.block(command.storage);
  if (id == kNoBlock) return;
  Block& b = blocks_[id];
  switch (command.verb) {
    case Verb::Fetch:
      if (b.state == State::Writing) make_dirty(id);  // it is still here, and is kept
      if (b.state != State::Absent) return;
      b.prefetched = true;
      prefetches_.push_back({id, b.generation});
      return;
    case Verb::WriteBack:
      if (b.state != State::Dirty || !evictable(b) || in_use(b)) return;
      b.write_back = true;
      if (!start_evict(id)) b.write_back = false;
      return;
    case Verb::Evict:  // one that is busy or in use is kept: it is the decider's then
      b.prefetched = b.prefetched && b.state == State::Reading;
      if (b.state == State::Writing && b.write_back) {
        b.write_back = false;
        evicting_ += b.paged_bytes;
      }
      if (evictable(b) && !in_use(b)) start_evict(id);
      return;
  }
}

void Arena::drop_prefetches() {
  for (; next_prefetch_ < prefetches_.size(); ++next_prefetch_) {
    const Bound& bound = prefetches_[next_prefetch_];
    Block& b = blocks_[bound.id];
    if (b.generation != bound.generation || b.state != State::Absent || !b.prefetched) continue;
    b.prefetched = false;
    request_refetch(bound.id);
  }
  prefetches_.clear();
  next_prefetch_ = 0;
}

// The decider took it, or its prefetch was given up. A policy that asks a schedule only when uses come fetches on demand.
void Arena::request_refetch(BlockId id) {
  Block& b = blocks_[id];
  if (b.refetch_pending || refetch_count_ == refetches_.size() || policy_.age != Age::SinceUse || !replay_.until_use(b, id))
    return;
  b.refetch_pending = true;
  refetches_[refetch_count_++] = id;
}

// What the schedule counts on comes back shortly before its use.
void Arena::queue_refetches() {
  std::size_t kept = 0;
  double ns_per_byte = came_back_ > 0 ? static_cast<double>(counters_.copy_ns[0]) / static_cast<double>(came_back_) : 1.0;
  for (BlockId id : refetches_.first(refetch_count_)) {
    Block& b = blocks_[id];
    if (!b.refetch_pending || b.state == State::Dead) continue;
    auto left = replay_.ns_left(b, id);
    bool is_away = b.state == State::Absent || b.state == State::Writing;
    double takes = ns_per_byte * static_cast<double>(b.paged_bytes);
    if (!left || !is_away || b.prefetched) {
      b.refetch_pending = false;
    } else if (b.state == State::Writing || static_cast<double>(*left) > kRefetchLead * takes) {
      refetches_[kept++] = id;
    } else {
      b.refetch_pending = false;
      b.prefetched = true;
      prefetches_.push_back({id, b.generation});
    }
  }
  refetch_count_ = kept;
}

// Begins the prefetches there is room for, in their order. Threads that stand still for room come first.
void Arena::start_prefetches() {
  while (next_prefetch_ < prefetches_.size() && waiting_for_room_ == 0 && !quiet_) {
    Bound bound = prefetches_[next_prefetch_];
    Block& b = blocks_[bound.id];
    bool wanted = b.generation == bound.generation && b.state == State::Absent && b.prefetched;
    if (wanted && !claim_for_fetch(b)) return;
    if (wanted) start_read(bound.id);
    ++next_prefetch_;
  }
}

}  // namespace ebbtide
