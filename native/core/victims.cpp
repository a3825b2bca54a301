#include "victims.hpp"

#include <algorithm>

namespace ebbtide {

Victims::Victims(BlockTable& blocks, Moves& moves, const Areas& areas, const OperatorStacks& stacks, const Replay& replay,
                 const Stretch& stretch, const Recency& recency, Refetches& refetches)
    : blocks_(blocks),
      moves_(moves),
      areas_(areas),
      stacks_(stacks),
      replay_(replay),
      stretch_(stretch),
      recency_(recency),
      refetches_(refetches),
      candidate_memory_(BlockTable::kCapacity * sizeof(Candidate), kSmallPage, PROT_READ | PROT_WRITE),
      candidates_(reinterpret_cast<Candidate*>(candidate_memory_.begin()), BlockTable::kCapacity) {}

void Victims::set_policy(const Policy& policy) {
  policy_ = policy;
  ready_ = {};
}

bool Victims::may_move(const Block& b) const {
  // What is clean may leave while a copy of it goes on between slower tiers.
  bool moves = b.transfer.busy() && (b.state != State::Clean || b.transfer.source == kFast || b.transfer.target == kFast);
  return (b.state == State::Dirty || b.state == State::Clean) && !moves && b.external_pins == 0 && !moves_.frozen();
}

// What no schedule knows is small or short-lived: while one is followed, it is evicted last.
std::uint64_t Victims::age(BlockId id) const {
  const Block& b = blocks_[id];
  if (auto ticks = replay_.until_use(b, id)) return *ticks;
  return replay_.active() ? 0 : recency_.now - b.last_use;
}

// First those who stand ready since all were looked at. What nobody waits for does not look at all again before that has
// been made use of.
std::uint64_t Victims::start_evictions(std::uint64_t needed, Shield up_to) {
  std::uint64_t started = 0;
  if (ready_for_schedule_ != replay_.active()) ready_ = {};
  while (started < needed && !ready_.empty()) {
    Candidate next = ready_.front();
    ready_ = ready_.subspan(1);
    ++looked_at_;
    const Block& b = blocks_[next.id];
    bool same = b.last_use <= ready_since_ && b.pins == 0 && is_in_the_way(b);  // else used since, or another by now
    if (same) started += start(next);
  }
  if (started >= needed) return started;
  if (up_to == Shield::None && looks_unused_ > 0) {
    --looks_unused_;
    return started;
  }
  return started + look_at_all(needed - started, up_to);
}

std::uint64_t Victims::start(const Candidate& victim) {
  if (!moves_.start_evict(victim.id)) return 0;
  looks_unused_ -= looks_unused_ > 0 ? 1 : 0;
  blocks_[victim.id].transient = true;
  request_refetch(victim.id);
  return victim.bytes;
}

std::uint64_t Victims::look_at_all(std::uint64_t needed, Shield up_to) {
  std::size_t count = 0;
  areas_refused_ = false;
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    if (b.home != kFast || !may_move(b) || stretch_.keeps(b) || in_use(b)) continue;
    Shield shield = b.pins > 0 ? Shield::Outer : b.last_use >= recency_.operator_began ? Shield::ThisTick : Shield::None;
    if (shield > up_to) continue;
    if (areas_.let_evict(b)) {
      candidates_[count++] = {id, shield, b.state == State::Clean, b.paged_bytes, age(id), b.transient};
    } else {
      areas_refused_ = true;
    }
  }
  looked_at_ += blocks_.live().size();
  looks_unused_ = blocks_.live().size() / kLooksPerVictim;
  ready_since_ = recency_.now;
  ready_for_schedule_ = replay_.active();
  auto candidates = candidates_.first(count);
  std::size_t spare = looks_unused_;
  std::size_t victims = choose_victims(candidates, needed, policy_, {}, spare);
  std::uint64_t started = 0;
  for (const Candidate& victim : candidates.first(victims)) started += start(victim);
  // Where the slower tiers refused one, what lies there already can still go.
  for (const Candidate& other : candidates.subspan(victims)) {
    if (started >= needed) break;
    if (other.clean) started += start(other);
  }
  ready_ = candidates.subspan(victims, std::min(spare, count - victims));
  while (!ready_.empty() && ready_.back().shield != Shield::None) ready_ = ready_.first(ready_.size() - 1);
  return started;
}

}  // namespace ebbtide
