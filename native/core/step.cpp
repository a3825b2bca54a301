// The step's clock; what a recorded step leaves behind; what a scheduled step is told to do.
#include "arena.hpp"

#include <utility>

namespace ebbtide {

namespace {
constexpr double kRefetchLead = 2.0;  // of the time that a thread takes to fetch it: what is under way comes first
}

bool Arena::on_step_thread() const { return step_stack_ != nullptr && step_stack_ == &this_operator_stack(); }

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
  in_step_ = true;
  step_stack_ = &this_operator_stack();
  clock_ = {};
  for (BlockId id : blocks_.live()) flush_traffic(blocks_[id]);  // what happened between steps stays what it was then
  Counters before = reading();
  recording_.reset();
  recorded_ = {};  // of a step that nobody asked about
  records_ = record;
  if (record) {
    recording_.emplace();
    recording_->spans.reserve(kMostSpans);
    recording_->began_ns = now_ns();
    recording_->stalled_before_ns = stalled_ns();
    recording_->ticks.push_back({0, 0, 0, 0, reserved_});
    for (BlockId id : blocks_.live()) {
      Block& b = blocks_[id];
      b.recorded = static_cast<std::uint32_t>(recording_->storages.size());
      b.transfer.asked_tick = 0;
      recording_->storages.push_back({.serial = b.serial, .nbytes = b.nbytes, .scratch = b.external_pins > 0});
    }
    for (OperatorStack* stack : stacks_) {  // other threads' operators that are under way
      for (Pin& pin : stack->pins) {
        pin.recorded = blocks_[pin.id].generation == pin.generation ? blocks_[pin.id].recorded : kNever;
        pin.from_tick = 0;
      }
    }
  }
  stall_clock_.storage = kNever;
  stalled_before_step_ns_ = stalled_ns();
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
  in_step_ = false;
  step_stack_ = nullptr;
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    if (!b.classified && b.born_in_step) b.kind = Kind::Other;
    b.born_in_step = false;
    flush_traffic(b);
    if (recording_ && b.recorded != kNever) recording_->storages[b.recorded].kind = b.kind;
    b.recorded = kNever;
  }
  if (recording_) {
    recording_->time_ns = now_ns() - recording_->began_ns;
    recording_->stalled_ns = stalled_ns() - recording_->stalled_before_ns;
    recorded_ = std::move(*recording_);
    recording_.reset();
    records_ = false;
  }
  pressure_ = room_waited_in_step_;
  room_waited_in_step_ = false;
  unmanaged_high_[1] = unmanaged_high_[0];
  unmanaged_high_[0] = unmanaged_;
  return reading();
}

Recording Arena::take_recording() {
  Lock lock(mutex_);
  return std::exchange(recorded_, {});
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

// An operator begins on this thread.
void Arena::tick(const char* name) {
  if (!in_step_ || !on_step_thread()) return;
  clock_ = {clock_.tick + 1, 0};
  if (recording_ && recording_->ticks.size() == kMostTicks) {  // no step to plan: an evaluation between two, say
    recording_.reset();
    records_ = false;
  }
  if (recording_) {
    recording_->ticks.push_back({recording_->name(name), recording_->module, now_ns() - recording_->began_ns,
                                 stalled_ns() - recording_->stalled_before_ns, reserved_});
  }
  replay_.tick();
  for (Command command; replay_.next(command);) carry_out(command);
  queue_refetches();
}

std::uint32_t Arena::enter_module(const char* name) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread()) return 0;
  return std::exchange(recording_->module, recording_->name(name));
}

std::uint32_t Arena::enter_module(std::uint32_t number) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread() || number >= recording_->names.size()) return 0;
  return std::exchange(recording_->module, number);
}

std::uint32_t Arena::module() {
  Lock lock(mutex_);
  return recording_ && on_step_thread() ? recording_->module : 0;
}

void Arena::describe(const char* arguments, Phase phase) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread()) return;
  RecordedTick& tick = recording_->ticks.back();
  tick.arguments = recording_->name(arguments);
  tick.depth = static_cast<std::uint32_t>(this_operator_stack().operators.size()) - 1;
  tick.phase = phase;
}

void Arena::born(BlockId id, bool in_operator) {
  Block& b = blocks_[id];
  b.serial = ++serials_;
  b.born_in_operator = in_operator;
  b.recorded = b.scheduled = kNever;
  if (!in_step_) return;
  bool clocked = on_step_thread();
  if (recording_) {
    b.recorded = static_cast<std::uint32_t>(recording_->storages.size());
    recording_->storages.push_back({.serial = b.serial,
                                    .nbytes = b.nbytes,
                                    .birth = clock_.tick,
                                    .allocation = clocked ? clock_.allocation : kNever,
                                    .module = recording_->module,
                                    .thread = thread_number()});
  }
  if (!clocked) return;
  ++clock_.allocation;
  bool followed = replay_.active();
  replay_.on_allocate(id, b.nbytes);
  if (followed && !replay_.active()) drop_prefetches();  // they were another step's
}

void Arena::died(BlockId id) {
  Block& b = blocks_[id];
  if (!recording_ || b.recorded == kNever) return;
  RecordedStorage& storage = recording_->storages[b.recorded];
  storage.kind = b.kind;
  storage.death = clock_.tick + 1;
  storage.scratch = b.born_in_operator;
  storage.freed_after = serials_;
  b.recorded = kNever;
}

void Arena::note_uses(const Pin& pin) {
  if (!recording_ || pin.recorded == kNever) return;
  recording_->uses.push_back({pin.recorded, pin.from_tick, clock_.tick, pin.access, pin.moved});
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
