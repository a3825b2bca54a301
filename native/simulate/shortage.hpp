// Where room is short in a simulation: who leaves, by the policy's rule in the decider, and ahead of which need.
#pragma once

#include "tier_state.hpp"

namespace ebbtide::simulate {

// A tick, with what it needs and what cannot leave, does not fit the budget.
struct DoesNotFit {
  std::size_t tick;
};

class Shortage : public TierState {
 public:
  Shortage(const Pieces& pieces, const Machine& machine, const Policy& rule, bool uses_in_place, Score score);

 protected:
  void make_room(std::int64_t nbytes, bool is_forced);  // what is forced is a rescue
  void evict_for(const std::vector<Piece>& missing);    // what the room lacks for the tick at hand
  void unstick(std::size_t tick);                       // throws DoesNotFit
  void depart(std::size_t tick);                        // evicts what leaves as soon as its operation has ended
  void go_ahead();                                      // evicts ahead of need
  void end_step();

  const Policy rule_;

 private:
  template <typename Evictable>
  std::vector<Piece> victims(unsigned rank, std::int64_t nbytes, const Evictable& evictable);
  bool move_an_elder();
  bool make_slow_room(const Copy& copy);

  const Score score_;
  std::vector<std::uint64_t> room_;  // paged bytes, as the order has them
  bool was_short_ = false;           // whether room has been short in this step
  bool is_short_ = false;            // or in the one before
};

}  // namespace ebbtide::simulate
