// Accesses that no operator announced: raw addresses that are asked for, and what the fault handler does.
#include <cerrno>
#include <cstdio>

#include "arena.hpp"

namespace ebbtide {

namespace {
constexpr const char* kUnannounced = "a compiled kernel or other code outside PyTorch's operators";
}  // namespace

// The one before has ended.
void Arena::begin_stretch() {
  if (off_the_record) return;  // what makes anew runs for what a stretch has touched
  const Stretch::Who who = whose_stretch();
  if (std::uint64_t touched = stretch_.bytes_that_thrash(who); touched > 0) {
    const OperatorStack& mine = this_operator_stack();
    const Operator* op = mine.of == &stacks_ && !mine.operators.empty() ? &mine.operators.back() : nullptr;
    std::uint64_t bytes = touched + (op != nullptr ? op->bytes : 0);
    remember_need(op != nullptr ? op->name : kUnannounced, bytes, bytes, 0);
  }
  stretch_.next(who);
}

Stretch::Who Arena::whose_stretch() const {
  return tape_.in_step() && !off_the_record && !tape_.on_step_thread() ? Stretch::OtherThreads : Stretch::Everybody;
}

int Arena::pin(const void* address, std::uint64_t nbytes) {
  if (in_child_) return fetch_in_child(address, nbytes);
  Lock lock(mutex_);
  begin_stretch();
  if (find_live(address) == kNoBlock) return ENOENT;
  const Operand asked = operand_at(address, nbytes);
  each_piece(asked, [&](BlockId id, std::uint64_t) {
    Block& b = blocks_[id];
    if (b.state == State::Untouched) touch(id, false, false);
    ++b.external_pins;  // first, so that nothing can begin to take it away
    b.last_use = ++recency_.now;  // who asks for an address is about to use it, also after letting go
  });
  int error = 0;
  each_piece(asked, [&](BlockId id, std::uint64_t) {  // the caller's storage, which lives on while this waits
    if (error == 0) room_.ensure_free(lock, id);
    if (error == 0) error = room_.ensure_usable(lock, id);
    State state = blocks_[id].state;
    if (error == 0 && (state == State::Clean || state == State::Writing)) moves_.make_dirty(id);
  });
  if (error != 0) each_piece(asked, [&](BlockId id, std::uint64_t) { --blocks_[id].external_pins; });
  return error;
}

void Arena::unpin(const void* address, std::uint64_t nbytes) {
  Lock lock(mutex_);
  each_piece(operand_at(address, nbytes), [&](BlockId id, std::uint64_t) {
    if (blocks_[id].external_pins > 0) --blocks_[id].external_pins;
  });
  mover_.changed();
}

bool Arena::is_pinned_from_outside(const void* address) {
  Lock lock(mutex_);
  bool pinned = false;
  each_piece(operand_at(address, 0), [&](BlockId id, std::uint64_t) { pinned = pinned || blocks_[id].external_pins > 0; });
  return pinned;
}

// There is nobody to tell but the user: an instruction waits for bytes that cannot be had.
void Arena::unreadable(const Block& b, int error) {
  char what[512];
  const auto [where, cure] = tiers_[fastest_with(b)].explain(error);
  if (error == EBADMSG) {
    std::snprintf(what, sizeof what, "three times, comparing what came back from %s with what was written there (%s)", where,
                  cure);
  } else {
    std::snprintf(what, sizeof what, "reading a storage back from %s (%s)", where, cure);
  }
  fatal(what, error);
}

// Runs in the SIGSEGV handler, as if called at the faulting instruction. That instruction held no lock of ours
// [Note: invariants, I5], and nothing on this path allocates [I6].
bool Arena::on_fault(const void* address, bool write) {
  if (in_child_) return on_fault_in_child(address);
  Lock lock(mutex_);
  BlockId id = find(address);
  if (id == kNoBlock || blocks_[id].state == State::Dead) return !write && reads_past_an_end(address);
  Block& b = blocks_[id];
  b.last_use = ++recency_.now;
  if (write && b.guards > 0 && b.state != State::Dead) {  // it comes again when nothing is made of it any more
    StallScope stall(stalls_);
    stall.begin(Stall::DemandFetch, b.recorded);
    ++counters_.faults;
    room_.ensure_free(lock, id);
    return true;
  }
  switch (b.state) {
    case State::Dead:
      return false;
    case State::Dirty:  // another thread was faster, or its protection is not what it should be
      if (b.can_be_written()) memory_.region(b).make_writable(b.place);
      return true;
    case State::Clean:
    case State::Writing:
      if (write) room_.spare_areas();  // because it may part an area; the block itself may leave for that: then it faults again
      if (write && b.has_pages()) moves_.make_dirty(id);
      return true;
    case State::Untouched:
      touch(id, false, true);
      break;
    case State::Absent:
    case State::Reading:
    case State::Blank:
    case State::Unmade:
      break;
  }
  StallScope stall(stalls_);
  stall.begin(b.why_it_is_waited_for(), b.recorded);
  if (b.state != State::Blank) ++counters_.faults;
  if (b.is_absent()) stretch_.count_return(b, whose_stretch());
  std::uint32_t generation = b.generation;
  if (int error = room_.ensure_usable(lock, id); error != 0) unreadable(b, error);
  if (write && b.generation == generation && b.state == State::Clean) moves_.make_dirty(id);
  return true;
}

// Kernels read whole vectors, some of them beyond their last element (PyTorch's fused SGD in bfloat16, a momentum). What
// lies there is nobody's, and not looked at; on a heap it is there.
bool Arena::reads_past_an_end(const void* address) {
  const char* inside = static_cast<const char*>(address) - kReadPastAnEnd;
  if (!contains(inside) || find_live(inside) == kNoBlock) return false;
  if (find(address) != kNoBlock) return true;  // what is dead leaves in a moment: it faults again until then
  return memory_.let_read(address);
}

}  // namespace ebbtide
