// Operators: what they need is there from enter() to exit().
#include <algorithm>

#include "arena.hpp"
#include "per_thread.hpp"

namespace ebbtide {

namespace {

struct ThreadStack : OperatorStack {
  Arena* arena = nullptr;
  ~ThreadStack() {
    if (of != nullptr) arena->forget(*this);
  }
};

}  // namespace

OperatorStack& this_operator_stack() { return of_this_thread<ThreadStack>(); }

void Arena::enter(const char* name, std::span<const Operand> operands, Work work, Pass pass) {
  Lock lock(mutex_);
  auto& stack = of_this_thread<ThreadStack>();
  if (stack.of != &stacks_) {
    stack.arena = this;
    stacks_.add(stack);
  }
  begin_stretch();
  step_.tick(name, stack.operators.size(), pass);
  const bool makes_anew = tape_.on_step_thread() && replay_.makes_anew();
  stack.operators.push_back({name, work, ++serial_, stack.pins.size()});
  recency_.operator_began = ++recency_.now;
  chaos();
  std::size_t first = stack.pins.size();
  stack.operators.back().by_faults = work != Work::Itself && go_by_faults(operands);
  for (const Operand& operand : operands) take_up(stack, first, operand);
  // Start what can start at once, then wait for each: the reads overlap.
  for (std::size_t i = first; i < stack.pins.size(); ++i) {
    BlockId id = stack.pins[i].id;
    const Block& b = blocks_[id];
    if (!b.is_absent() || b.transfer.busy() || room_.try_fetch(id, true)) continue;
    if (b.state == State::Blank) blocks_[id].transient = true;
  }
  for (std::size_t i = first; i < stack.pins.size(); ++i) {
    Block& b = blocks_[stack.pins[i].id];
    if (b.generation != stack.pins[i].generation) continue;
    if (b.state == State::Unmade) {  // it left after the operator had been looked at
      lock.unlock();
      options_.make(b.address);
      lock.lock();
    }
    if (!b.is_absent() && b.state != State::Reading) continue;
    WaitLabel label(options_.labels, lock, b.why_it_is_waited_for());
    if (b.generation != stack.pins[i].generation) continue;  // it died while a profiler was told
    StallScope stall(stalls_);
    bool prefetched = b.comes_back == Return::Prefetch;
    stall.begin(b.why_it_is_waited_for(), b.recorded);
    std::int64_t since = now_ns();
    room_.ensure_usable(lock, stack.pins[i].id);  // of what cannot be read the operator's own access learns
    if (prefetched) replay_.was_late(b, stack.pins[i].id, now_ns() - since);
  }
  stack.makes_anew = makes_anew;  // operators that ran meanwhile said otherwise
  step_.start_prefetches();
}

// Whether what these need together does not fit, and pieces of it need not be there all at once.
bool Arena::go_by_faults(std::span<const Operand> operands) const {
  if (std::ranges::none_of(operands, [this](const Operand& operand) { return operand.range.end >= least_in_pieces_; }))
    return false;
  std::uint64_t bytes = 0;
  bool any = false;
  for (const Operand& operand : operands) {
    each_piece(operand, [&](BlockId id, std::uint64_t) {
      bytes += blocks_[id].paged_bytes;
      any = any || blocks_[id].is_piece();
    });
  }
  return any && !fits(bytes);
}

void Arena::take_up(OperatorStack& stack, std::size_t first, const Operand& operand) {
  std::uint64_t pieces = 0;
  each_piece(operand, [&](BlockId id, std::uint64_t moved) {
    Block& b = blocks_[id];
    Operator& op = stack.operators.back();
    if (b.pinned_by == op.serial) {  // it comes twice
      auto pin = std::find_if(stack.pins.begin() + static_cast<std::ptrdiff_t>(first), stack.pins.end(),
                              [&](const Pin& p) { return p.id == id; });
      pin->access = static_cast<Access>(static_cast<int>(pin->access) | static_cast<int>(operand.access));
      pin->moved += moved;
      return;
    }
    bool one_of_many = b.is_piece() && op.work != Work::Itself && pieces++ >= kPiecesInOrder;
    std::uint64_t counted = one_of_many ? 0 : b.paged_bytes;
    if (b.is_piece() && op.by_faults) {
      if (!off_the_record) tape_.used(b.recorded, tape_.clock().tick, operand.access, moved);
      op.bytes += counted;
      op.peak = std::max(op.peak, op.bytes);
      return;
    }
    if (b.state == State::Untouched) touch(id, false, false);
    pin_operand(stack, id, operand.access, false, moved, counted);
  });
}

void Arena::pin_operand(OperatorStack& stack, BlockId id, Access access, bool born_here, std::uint64_t moved,
                        std::uint64_t counted) {
  Block& b = blocks_[id];
  Operator& op = stack.operators.back();
  stack.pins.push_back({id, b.generation, b.pinned_by, off_the_record ? kNever : b.recorded, tape_.clock().tick, access,
                        born_here, moved, counted});
  ++b.pins;
  b.pinned_by = op.serial;
  ++recency_.now;
  if (++accesses_ % victims_.policy().sees_every == 0) b.last_use = recency_.now;
  op.bytes += counted;
  op.used += std::min<std::uint64_t>(access == Access::ReadWrite ? moved / 2 : moved, b.paged_bytes);
  if (!born_here) op.largest = std::max(op.largest, b.paged_bytes);
  op.peak = std::max(op.peak, op.bytes);
}

// What an inner operator made belongs to the one that called it: its kernel is about to fill it.
void Arena::exit() {
  if (tape_.records() && tiers_.fastest_packing() != nullptr) look_at_contents();
  Lock lock(mutex_);
  OperatorStack& stack = this_operator_stack();
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
      outer->bytes += pin.counted;
      outer->peak = std::max(outer->peak, outer->bytes);
      stack.pins[kept++] = pin;
    } else {
      unpin_operand(pin);
      bool leaves = b.generation == pin.generation && !off_the_record;  // what makes anew would never come to an end
      if (leaves) room_.after_use(pin.id);
    }
  }
  stack.pins.resize(kept);
  if (op.work != Work::InGroups) remember_need(op.name, op.peak, op.used, op.largest);
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
  std::uint64_t needed = 0;
  std::vector<BlockId> counted;  // pieces, which two operands may have
  for (const Operand& operand : operands) {
    std::uint64_t pieces = 0;
    each_piece(operand, [&](BlockId id, std::uint64_t) {
      if (blocks_[id].is_piece()) {
        if (std::ranges::find(counted, id) != counted.end()) return;
        counted.push_back(id);
      }
      bytes += blocks_[id].paged_bytes;
      if (pieces++ < kPiecesInOrder) needed += blocks_[id].paged_bytes;
      largest = std::max(largest, blocks_[id].paged_bytes);
    });
  }
  remember_need(name, needed, needed, largest);
  return bytes;
}

void Arena::forget(OperatorStack& stack) {
  Lock lock(mutex_);
  stacks_.forget(stack);
}

}  // namespace ebbtide
