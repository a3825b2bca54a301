// Operators on a device, and its steps: what is recorded, and what plans ask for.
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "device_memory.hpp"
#include "lines.hpp"
#include "recipe.hpp"
#include "recipes.hpp"
#include "storage_access.hpp"

namespace ebbtide {

// --- operators

void DeviceMemory::follow_thread() {
  if (!tape_.in_step() || off_the_record || tape_.on_step_thread()) return;
  if (thread_number() == step_thread_ || torch::autograd::get_current_graph_task_id() != -1) tape_.go_on_here();
}

void DeviceMemory::enter(const char* name, std::span<const Operand> operands, Work, Pass) {
  Stack& mine = this_stack();
  std::optional<BirthLine> line;
  if (!mine.unseen.empty()) line.emplace(tape_);
  std::unique_lock lock(mutex_);
  c10::Stream stream = copies_.current();
  bool captured = captures_ || copies_.is_capturing(stream);  // a graph uses addresses again
  bool moves = !captured && !suspended_;
  const std::string_view called = name;
  bool shared = called == "aten::_lazy_clone";  // by two storages, until one of them is written to
  bool others_go_on = called.starts_with("c10d::") || called == "aten::record_stream";  // on streams that nobody announces
  sweep(tape_.recording());
  follow_thread();
  ++now_;
  if (tape_.on_step_thread()) {
    tape_.tick(name, static_cast<std::uint32_t>(mine.operators.size()), 0, used());
    replay_.tick();
    if (moves) note_time(stream, Mark::Tick);
  }
  add_births(mine, false);
  std::size_t first = mine.pins.size();
  mine.operators.push_back({first, called.starts_with("aten::")});
  for (const Operand& operand : operands) {
    BlockId id = known(operand.address);
    if (id == kNoBlock) continue;
    Block& b = blocks_[id];
    ++b.pins;
    b.last_use = now_;
    std::uint32_t recorded = off_the_record ? kNever : b.recorded;
    mine.pins.push_back({id, b.generation, recorded, tape_.clock().tick, operand.access, false, operand.moved});
  }
  const bool makes_anew = moves && (wants_all_recipes_ || (tape_.on_step_thread() && replay_.makes_anew()));
  if (moves && !off_the_record) carry_out_commands();
  std::uint64_t due = tape_.on_step_thread() ? replay_.births_due() : 0;
  if (due > 0 && limit_ > 0 && used() + due > limit_) make_room(due);
  for (std::size_t i = first; i < mine.pins.size(); ++i) {
    const OperatorPin pin = mine.pins[i];
    while (blocks_[pin.id].state == State::Unmade) {  // it left after the operator had been looked at
      lock.unlock();
      bool is_there = make_anew(places_[pin.id].key);
      lock.lock();
      if (!is_there) break;
    }
    Block& b = blocks_[pin.id];
    if (b.state == State::Absent) bring(pin.id, name);
    arrive(pin.id, stream);
    Place& p = places_[pin.id];
    p.is_pinned_for_good = p.is_pinned_for_good || captured || shared;
    p.is_pinned = p.is_pinned || others_go_on;
    if (!shared && (b.state != State::Clean || pin.access == Access::Read)) continue;
    if (Strong storage = strong(pin.id)) call_me_no_more(pin.id, *storage);
    written(pin.id);
  }
  mine.makes_anew = makes_anew;  // operators that ran meanwhile said otherwise
  if (!moves || off_the_record) return;
  chaos();
  start_prefetches();
}

void DeviceMemory::exit() {
  if (in_child_) return;
  Stack& mine = this_stack();
  std::optional<BirthLine> line;
  if (!mine.unseen.empty()) line.emplace(tape_);
  Lock lock(mutex_);
  if (mine.operators.empty()) return;
  follow_thread();
  add_births(mine, true);
  std::size_t first = mine.operators.back().first_pin;
  mine.operators.pop_back();
  std::uint64_t needed = 0;
  std::size_t kept = first;
  for (std::size_t i = first; i < mine.pins.size(); ++i) {
    OperatorPin pin = mine.pins[i];
    Block& b = blocks_[pin.id];
    if (b.generation != pin.generation) continue;
    needed += b.paged_bytes;
    if (pin.born_here && !mine.operators.empty()) {  // what an inner operator made is the outer one's to use
      mine.pins[kept++] = pin;
      continue;
    }
    tape_.used(pin.recorded, pin.from_tick, pin.access, pin.moved);
    b.last_use = now_;
    --b.pins;
    if (b.is_absent() && b.pins == 0) refuse_no_more(pin.id);  // it was refused to operators that have ended
    if (!tells<c10::StorageImpl> || places_[pin.id].is_guarded) continue;
    if (Strong storage = strong(pin.id)) call_me(pin.id, *storage);  // its kernel asked for the address
  }
  mine.pins.resize(kept);
  if (needed > counters_.largest_operator_bytes) counters_.largest_operator_bytes = needed;
  if (!suspended_) trim();
}

std::uint64_t DeviceMemory::note_need(const char*, std::span<const Operand> operands) {
  Lock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const Operand& operand : operands) {
    if (BlockId id = known(operand.address); id != kNoBlock) bytes += blocks_[id].paged_bytes;
  }
  return bytes;
}

void DeviceMemory::prefetch(std::span<const Operand> operands) {
  Lock lock(mutex_);
  for (const Operand& operand : operands) {
    BlockId id = known(operand.address);
    if (id != kNoBlock && blocks_[id].state == State::Absent) start_back(id, false);
  }
}

void DeviceMemory::classify(const void* storage, Kind kind) {
  Lock lock(mutex_);
  if (BlockId id = known(storage); id != kNoBlock) {
    blocks_[id].kind = kind;
    blocks_[id].classified = true;
  }
}

// --- the step

Counters DeviceMemory::begin_step(bool record) {
  Lock lock(mutex_);
  sweep(true);
  for (auto [id, generation] : std::exchange(this_stack().unseen, {})) {
    if (blocks_[id].generation == generation) places_[id].is_new = false;
  }
  step_thread_ = thread_number();
  step_live_peak_ = live_;
  largest_birth_ = std::exchange(largest_birth_now_, 0);
  Counters before = count();
  tape_.begin(record, used());
  marks_.clear();
  timed_.clear();
  if (record) {
    for (BlockId id : blocks_.live()) {
      bool stays = places_[id].is_pinned_for_good || places_[id].is_kept;
      blocks_[id].recorded = tape_.was_there(blocks_[id].serial, blocks_[id].nbytes, stays);
    }
    note_time(copies_.current(), Mark::Tick);
    began_ns_ = now_ns();
  }
  begin_schedule();
  return before;
}

void DeviceMemory::begin_schedule() {
  drop_prefetches();
  replay_.begin();
  replay_.each_that_begins_away([this](BlockId id, Rank target) {
    if (evictable(id)) start_out(id, target);
  });
  carry_out_commands();
  start_prefetches();
}

Counters DeviceMemory::end_step(bool completed) {
  Lock lock(mutex_);
  if (tape_.in_step()) tape_.go_on_here();
  sweep(true);
  if (completed) {
    replay_.end(0);
  } else {
    replay_.abandon();
  }
  drop_prefetches();
  std::int64_t stalled_ns = 0, now = now_ns();
  if (tape_.recording()) read_times(stalled_ns, now);
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    if (!b.classified) b.kind = Kind::Other;
    tape_.is(b.recorded, b.kind);
    b.recorded = kNever;
    if (!std::exchange(places_[id].is_pinned, false)) continue;
    places_[id].was_pinned = true;
    if (Strong storage = strong(id)) call_me(id, *storage);
  }
  read_makings();
  tape_.end(stalled_ns, now);
  marks_.clear();
  timed_.clear();
  return count();
}

// Marks the stream's time in a recorded step.
void DeviceMemory::note_time(const c10::Stream& stream, Mark::What what) {
  if (!tape_.recording() || !tape_.on_step_thread() || marks_.size() >= 2 * kMostTicks) return;
  marks_.push_back({copies_.timed_mark(stream), what});
}

// When the device came to what the host had asked for. Where it does not tell times, those of the host stay.
void DeviceMemory::read_times(std::int64_t& stalled_ns, std::int64_t& now) {
  marks_.push_back({copies_.timed_mark(copies_.current()), Mark::Tick});
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  try {
    for (const Mark& mark : marks_) mark.event.synchronize();
    std::int64_t since = 0, at = 0;
    auto after = [this](const c10::Event& event) {
      return static_cast<std::int64_t>(marks_.front().event.elapsedTime(event) * 1e6);
    };
    for (const Mark& mark : marks_) {
      at = std::max(at, after(mark.event));
      if (mark.what == Mark::Tick) times.emplace_back(at, stalled_ns);
      if (mark.what == Mark::StallBegins) since = at;
      if (mark.what == Mark::StallEnds) stalled_ns += at - since;
    }
    now = began_ns_ + at;
    times.pop_back();  // the end
    for (const TimedCopy& copy : timed_) {
      copy.end.synchronize();
      std::int64_t begin = began_ns_ + after(copy.begin), end = began_ns_ + after(copy.end);
      Lane lane = copy.source == kFast ? Lane::Out : Lane::Back;
      tape_.moved({copy.storage, copy.tick, lane, copy.source, copy.target, std::min(copy.asked_ns, begin), begin, end});
    }
  } catch (const c10::Error&) {
    return;
  }
  tape_.set_times(times);
}

void DeviceMemory::carry_out_commands() {
  for (Command command; replay_.next(command);) {
    BlockId id = replay_.block(command.storage);
    if (id == kNoBlock) continue;
    Block& b = blocks_[id];
    if (command.verb == Verb::Fetch) {
      if (b.state == State::Absent) queue_prefetch(id);
    } else if (command.source == kFast && !(command.verb == Verb::Evict && command.then == Then::Keep)) {
      b.has_come();
      if (evictable(id)) start_out(id, command.target);
    }
  }
  refetches_.take_due(ns_per_byte_, [this](BlockId id) { queue_prefetch(id); });
}

void DeviceMemory::queue_prefetch(BlockId id) {
  blocks_[id].comes_back = Return::Prefetch;
  prefetches_.push_back({id, blocks_[id].generation});
}

// In their order; what is still read from the file keeps none of the others waiting.
void DeviceMemory::start_prefetches() {
  bool has_room = true;
  std::erase_if(prefetches_, [&](Bound bound) {
    if (!is_due(bound)) return true;
    if (!comes_to_host(bound.id, false) || !has_room) return false;
    return has_room = start_back(bound.id, false);
  });
}

bool DeviceMemory::is_due(Bound bound) const {
  const Block& b = blocks_[bound.id];
  return b.generation == bound.generation && b.state == State::Absent && b.comes_back == Return::Prefetch;
}

void DeviceMemory::drop_prefetches() {
  for (Bound bound : prefetches_) {
    if (is_due(bound)) blocks_[bound.id].comes_back = Return::Unplanned;
  }
  prefetches_.clear();
}

}  // namespace ebbtide
