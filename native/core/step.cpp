#include "step.hpp"

#include <utility>

namespace ebbtide {

Step::Step(BlockTable& blocks, Tape& tape, Replay& replay, Refetches& refetches, StallClock& stalls, Budget& budget, Mover& mover,
           Moves& moves, Victims& victims, Room& room, const OperatorStacks& stacks)
    : blocks_(blocks),
      tape_(tape),
      replay_(replay),
      refetches_(refetches),
      stalls_(stalls),
      budget_(budget),
      mover_(mover),
      moves_(moves),
      victims_(victims),
      room_(room),
      stacks_(stacks) {}

// --- the clock

void Step::begin(bool record) {
  tape_.begin(record, budget_.reserved());
  stalled_before_ns_ = stalls_.total();
  apart_ns_ = 0;
  if (record) list_storages();
  evaluates_ = trained_ = false;
  stalls_.begin_step();
  begin_schedule();
}

void Step::begin_schedule() {
  drop_prefetches();
  replay_.begin();
  replay_.each_that_begins_away([this](BlockId id, Rank rank) {
    if (blocks_[id].home != rank) evict(id, Then::Drop, rank);
  });
  carry_out_commands();
  start_prefetches();
}

void Step::end(bool completed) {
  if (completed) {
    replay_.end(stalled_ns());
  } else {
    replay_.abandon();
  }
  drop_prefetches();
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    if (!b.classified) b.kind = Kind::Other;
    tape_.is(b.recorded, b.kind);
    b.recorded = kNever;
  }
  tape_.end(stalled_ns() + apart_ns_, now_ns());
}

// What is there before tick 0 goes on the tape.
void Step::list_storages() {
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    b.recorded = tape_.was_there(b.serial, b.nbytes, b.external_pins > 0, b.whole);
    b.transfer.asked_tick = 0;
  }
  for (OperatorStack* stack : stacks_.all()) {  // other threads' operators that are under way
    for (Pin& pin : stack->pins) {
      pin.recorded = blocks_[pin.id].generation == pin.generation ? blocks_[pin.id].recorded : kNever;
      pin.from_tick = 0;
    }
  }
}

// [Note: evaluation]  An iteration that evaluates before it trains does so where others have nothing, so no schedule is
// like it. When such an evaluation ends, the step begins anew: its clock, its recording, and its schedule. What is the
// same in every iteration (an average of the weights, a teacher) belongs to its schedule, which is not lost then.
bool Step::evaluation_ends(Pass pass) {
  bool evaluated = std::exchange(evaluates_, pass == Pass::Evaluates);
  trained_ = trained_ || pass == Pass::Trains;
  return evaluated && pass == Pass::Computes && !trained_ && replay_.lost();
}

void Step::begin_anew() {
  tape_.begin_anew(budget_.reserved());
  stalled_before_ns_ = stalls_.total();
  apart_ns_ = 0;
  if (tape_.recording()) list_storages();
  stalls_.begin_step();
  begin_schedule();
}

void Step::tick(const char* name, std::size_t depth, Pass pass) {
  if (!tape_.on_step_thread()) return;
  ++operators_;
  if (depth == 0 && evaluation_ends(pass)) begin_anew();
  tape_.tick(name, static_cast<std::uint32_t>(depth), stalled_ns() + apart_ns_, budget_.reserved());
  replay_.tick();
  carry_out_commands();
  // What the schedule counts on comes back shortly before its use.
  double ns_per_byte =
      moves_.fetched() > 0 ? static_cast<double>(mover_.copy_ns()[0]) / static_cast<double>(moves_.fetched()) : 1.0;
  refetches_.take_due(ns_per_byte, [this](BlockId id) { queue_prefetch(id); });
}

void Step::was_apart(std::int64_t ns) {
  if (tape_.on_step_thread()) apart_ns_ += ns;
}

void Step::born(BlockId id, bool in_operator) {
  Block& b = blocks_[id];
  b.serial = ++serials_;
  if (off_the_record) return;
  b.born_in_operator = in_operator;
  b.scheduled = kNever;
  std::size_t depth = this_operator_stack().operators.size();
  b.recorded = tape_.born(b.serial, b.nbytes, depth, b.is_piece() ? b.line : tape_.line(), b.whole);
  if (!tape_.on_step_thread()) return;
  bool followed = replay_.active();
  replay_.on_allocate(id, b.nbytes);
  if (followed && !replay_.active()) drop_prefetches();  // they were another step's
}

void Step::born_by_fault(BlockId id) {
  Block& b = blocks_[id];
  b.serial = ++serials_;
  b.recorded = b.scheduled = kNever;
}

void Step::died(BlockId id) {
  Block& b = blocks_[id];
  tape_.died(b.recorded, b.kind, b.born_in_operator, serials_);
  b.recorded = kNever;
}

// --- the schedule

void Step::carry_out_commands() {
  for (Command command; replay_.next(command);) carry_out(command);
}

void Step::carry_out(const Command& command) {
  BlockId id = replay_.block(command.storage);
  if (id == kNoBlock) return;
  const Command& c = command;
  if (c.source != kFast && c.verb == Verb::Drop) return moves_.drop(id, c.source);
  if (c.source != kFast && c.target != kFast) {
    moves_.start_copy(id, c.source, c.target, Then::Keep);
  } else if (c.verb == Verb::Fetch) {
    if (blocks_[id].state == State::Writing && blocks_[id].home == kFast) moves_.make_dirty(id);  // it is still here, and is kept
    if (blocks_[id].is_away()) queue_prefetch(id);
  } else if (c.verb == Verb::Evict && c.then == Then::Keep) {
    if (blocks_[id].state == State::Dirty) evict(id, Then::Keep, c.target);
  } else {
    drop_pages(id, c.target);
  }
}

// One that is busy or in use is kept: it is the decider's then.
void Step::evict(BlockId id, Then then, Rank target) {
  const Block& b = blocks_[id];
  if (victims_.is_in_the_way(b) && !victims_.in_use(b)) moves_.start_evict(id, then, target);
}

void Step::drop_pages(BlockId id, Rank target) {
  Block& b = blocks_[id];
  if (b.has_pages() && b.home != kFast) return;
  if (b.state != State::Reading) b.has_come();  // it need not come any more
  if (b.state == State::Writing) moves_.evict_when_written(id);
  evict(id, Then::Drop, target);
}

// --- prefetches

void Step::queue_prefetch(BlockId id) {
  blocks_[id].comes_back = Return::Prefetch;
  prefetches_.push_back({id, blocks_[id].generation});
}

void Step::drop_prefetches() {
  for (; next_prefetch_ < prefetches_.size(); ++next_prefetch_) {
    const Bound& bound = prefetches_[next_prefetch_];
    Block& b = blocks_[bound.id];
    if (b.generation != bound.generation || !b.is_away() || b.comes_back != Return::Prefetch) continue;
    b.comes_back = Return::Unplanned;
    victims_.request_refetch(bound.id);
  }
  prefetches_.clear();
  next_prefetch_ = 0;
}

// Begins the prefetches there is room for, in their order. Threads that stand still for room come first.
void Step::start_prefetches() {
  while (next_prefetch_ < prefetches_.size() && room_.threads_waiting() == 0 && !mover_.hushed()) {
    Bound bound = prefetches_[next_prefetch_];
    Block& b = blocks_[bound.id];
    bool wanted = b.generation == bound.generation && b.is_away() && b.comes_back == Return::Prefetch;
    bool cannot = !b.is_absent() && !b.transfer.busy() && !moves_.may_migrate(b);  // it is used where it is
    if (wanted && !cannot && (b.transfer.busy() || !room_.try_fetch(bound.id))) return;
    ++next_prefetch_;
  }
}

}  // namespace ebbtide
