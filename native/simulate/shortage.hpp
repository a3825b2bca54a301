// Where room is short in a simulation of a plan, who leaves: simulator/shortage.py. The rule is the decider's lru-next-use.
#pragma once

#include "tier_state.hpp"

namespace ebbtide::simulate {

// A tick, with what it needs and what cannot leave, does not fit the budget.
struct DoesNotFit {
  std::size_t tick;
};

class Shortage : public TierState {
 public:
  using TierState::TierState;

 protected:
  void make_room(std::int64_t nbytes);                            // by rescues
  void evict_for(const std::vector<Piece>& missing);              // what the room lacks for the tick at hand
  void unstick(std::size_t tick);                                 // throws DoesNotFit

 private:
  template <typename Evictable>
  std::vector<Piece> victims(unsigned rank, std::int64_t nbytes, const Evictable& evictable);
  bool move_an_elder();
  bool make_slow_room(const Copy& copy);

  std::vector<std::uint64_t> room_;  // paged bytes, as the order has them
};

}  // namespace ebbtide::simulate
