// Who is evicted to make room: collects what the decider ranks. Under the arena's mutex.
#pragma once

#include <cstdint>
#include <span>

#include "areas.hpp"
#include "decider.hpp"
#include "moves.hpp"
#include "operators.hpp"
#include "refetches.hpp"
#include "replay.hpp"
#include "stretch.hpp"

namespace ebbtide {

// The clock of recency.
struct Recency {
  std::uint64_t now = 0;
  std::uint64_t operator_began = 0;  // the one that began last
};

class Victims {
 public:
  Victims(BlockTable& blocks, Moves& moves, const Areas& areas, const OperatorStacks& stacks, const Replay& replay,
          const Stretch& stretch, const Recency& recency, Refetches& refetches);

  const Policy& policy() const { return policy_; }
  void set_policy(const Policy& policy);

  // Whether a move may begin: it is resident, no move of it is under way, and nobody reaches it without a fault.
  bool may_move(const Block& b) const;
  bool evictable(const Block& b) const { return may_move(b) && !stretch_.keeps(b) && areas_.let_evict(b); }
  bool is_in_the_way(const Block& b) const { return b.home == kFast && evictable(b); }
  std::uint64_t operator_began() const { return recency_.operator_began; }
  bool follows_schedule() const { return replay_.active(); }
  bool in_use(const Block& b) const { return b.pins > 0 && stacks_.are_in(b.pinned_by); }

  // Starts evicting at least `needed` bytes if it can; the bytes whose eviction began (or, clean, was done).
  std::uint64_t start_evictions(std::uint64_t needed, Shield up_to);
  // What the schedule counts on comes back. A policy that asks a schedule only when uses come fetches on demand.
  void request_refetch(BlockId id) {
    if (policy_.age == Age::SinceUse) refetches_.request(id);
  }

  std::uint64_t looked_at() const { return looked_at_; }
  bool areas_refused() const { return areas_refused_; }  // the last look met storages that are kept for want of areas

 private:
  std::uint64_t look_at_all(std::uint64_t needed, Shield up_to);
  std::uint64_t start(const Candidate& victim);
  std::uint64_t age(BlockId id) const;

  BlockTable& blocks_;
  Moves& moves_;
  const Areas& areas_;
  const OperatorStacks& stacks_;
  const Replay& replay_;
  const Stretch& stretch_;
  const Recency& recency_;
  Refetches& refetches_;
  Policy policy_ = kDemand;

  Reservation candidate_memory_;
  std::span<Candidate> candidates_;
  std::span<Candidate> ready_;       // of them, those who are evicted next
  std::uint64_t ready_since_ = 0;    // the clock of recency when they were collected
  bool ready_for_schedule_ = false;  // and whether a schedule told their age
  std::size_t looks_unused_ = 0;     // victims that the last look at all is still good for
  std::uint64_t looked_at_ = 0;
  bool areas_refused_ = false;
};

}  // namespace ebbtide
