// A step: its clock, what it leaves on the tape, and the schedule it follows. Under the arena's mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "block_table.hpp"
#include "moves.hpp"
#include "operators.hpp"
#include "refetches.hpp"
#include "replay.hpp"
#include "room.hpp"
#include "stall_clock.hpp"
#include "tape.hpp"
#include "victims.hpp"

namespace ebbtide {

class Step {
 public:
  Step(BlockTable& blocks, Tape& tape, Replay& replay, Refetches& refetches, StallClock& stalls, Budget& budget, Mover& mover,
       Moves& moves, Victims& victims, Room& room, const OperatorStacks& stacks);

  void begin(bool record);
  void end(bool completed);
  void tick(const char* name, std::size_t depth, Pass pass);  // an operator begins on this thread, within so many others
  Rank birth(std::uint64_t nbytes) const { return tape_.on_step_thread() ? replay_.birth(nbytes) : kFast; }
  void born(BlockId id, bool in_operator);
  void born_by_fault(BlockId id);  // the tape has no room for it, and the clock does not count it
  void died(BlockId id);
  void start_prefetches();
  std::uint64_t operators() const { return operators_; }  // that began on the step's thread, in all
  void was_apart(std::int64_t ns);  // so much of this thread's time is no operator's

 private:
  void begin_schedule();
  bool evaluation_ends(Pass pass);
  void begin_anew();
  void list_storages();
  void carry_out_commands();
  void carry_out(const Command& command);
  void evict(BlockId id, Then then, Rank target);
  void drop_pages(BlockId id, Rank target);
  void queue_prefetch(BlockId id);
  void drop_prefetches();
  std::int64_t stalled_ns() const { return stalls_.total() - stalled_before_ns_; }

  BlockTable& blocks_;
  Tape& tape_;
  Replay& replay_;
  Refetches& refetches_;
  StallClock& stalls_;
  Budget& budget_;
  Mover& mover_;
  Moves& moves_;
  Victims& victims_;
  Room& room_;
  const OperatorStacks& stacks_;

  std::int64_t stalled_before_ns_ = 0;
  std::int64_t apart_ns_ = 0;
  std::uint64_t operators_ = 0;
  bool evaluates_ = false;         // so far the last operator did
  bool trained_ = false;           // a backward pass or an optimizer has begun
  std::uint64_t serials_ = 0;      // allocations so far
  std::vector<Bound> prefetches_;  // of this step, in the order in which they are needed
  std::size_t next_prefetch_ = 0;  // it and those after it wait for room
};

}  // namespace ebbtide
