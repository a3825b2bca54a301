// What a policy of the decider leaves open, seen from one moment of a simulation: where births go, and what is promoted.
//
// Policies know the past, except for lru-next-use. Those that use slow tiers in place (Policy::born_in_place) are two:
// first-touch (AutoTM's NUMA baseline) keeps whatever found room at its birth, and uses the rest on the next tier with room.
// reactive, after TPP (ASPLOS'23), promotes what it sees twice within a step, once there is room for it, and evicts what was
// seen least recently for that. Reconstructed from the paper's abstract design: pages, active lists and their ageing are left
// out. All others bring every operand to the first tier on demand, as a hardware-managed cache would.
#pragma once

#include <set>

#include "shortage.hpp"

namespace ebbtide::simulate {

class Online : public Shortage {
 public:
  // nullptr: no policy, but a plan. Then operations work in place where the plan has it so, and the safety net knows the next
  // uses.
  Online(const Pieces& pieces, const Machine& machine, const Policy* policy, Score score);

 protected:
  unsigned home(Piece piece);                         // the tier where it is born, or is at the beginning
  void see(Piece piece);                              // an access that counts as a use
  void promote_hot();                                 // when an operation has ended
  bool is_seen() { return ++n_accesses_ % rule_.sees_every == 0; }

 private:
  bool writes_in_place(unsigned rank) const { return rank == 0 || machine_.tiers[rank].writes; }
  void promote(Piece piece);

  const bool in_place_;  // births go where there is room
  const bool promotes_;
  std::int64_t n_accesses_ = 0;
  std::vector<std::int64_t> seen_;  // by piece, when; -1: never
  std::set<Piece> hot_;             // what waits for its promotion
};

}  // namespace ebbtide::simulate
