// Who is evicted to make room. What the decider ranks is collected here.
#include "arena.hpp"

namespace ebbtide {

// Whether a move may begin: it is resident, no move of it is under way, and nobody reaches it without a fault.
bool Arena::may_move(const Block& b) const {
  return (b.state == State::Dirty || b.state == State::Clean) && !b.transfer.busy() && b.external_pins == 0 && !in_child_;
}

// Whether a loop would fault it back in at once [Note: stretches]. For want of areas it is evicted all the same.
bool Arena::goes_round(const Block& b) const { return stretch_.thrashes && b.touched_in == stretch_.number; }

bool Arena::evictable(const Block& b) const { return may_move(b) && !goes_round(b) && areas_let_evict(b); }

// What no schedule knows is small or short-lived: while one is followed, it is evicted last.
std::uint64_t Arena::age(BlockId id) const {
  const Block& b = blocks_[id];
  if (auto ticks = replay_.until_use(b, id)) return *ticks;
  return replay_.active() ? 0 : stamp_ - b.last_use;
}

// Starts evicting at least `needed` bytes if it can; the bytes whose eviction began (or, clean, was done). First those who
// stand ready since all were looked at. What nobody waits for does not look at all again before that has been made use of.
std::uint64_t Arena::start_evictions(std::uint64_t needed, Shield up_to) {
  std::uint64_t started = 0;
  if (ready_for_schedule_ != replay_.active()) ready_ = {};
  while (started < needed && !ready_.empty()) {
    Candidate next = ready_.front();
    ready_ = ready_.subspan(1);
    ++counters_.looked_at;
    const Block& b = blocks_[next.id];
    bool same = b.last_use <= ready_since_ && b.pins == 0 && evictable(b);  // else used since, or another by now
    if (same) started += start_victim(next);
  }
  if (started >= needed) return started;
  if (up_to == Shield::None && looks_unused_ > 0) {
    --looks_unused_;
    return started;
  }
  return started + look_at_all(needed - started, up_to);
}

std::uint64_t Arena::start_victim(const Candidate& victim) {
  if (!start_evict(victim.id)) return 0;
  looks_unused_ -= looks_unused_ > 0 ? 1 : 0;
  blocks_[victim.id].transient = true;
  request_refetch(victim.id);
  return victim.bytes;
}

std::uint64_t Arena::look_at_all(std::uint64_t needed, Shield up_to) {
  std::size_t count = 0;
  areas_refused_ = false;
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    if (!may_move(b) || goes_round(b) || in_use(b)) continue;
    Shield shield = b.pins > 0 ? Shield::Outer : b.last_use >= tick_stamp_ ? Shield::ThisTick : Shield::None;
    if (shield > up_to) continue;
    if (areas_let_evict(b)) {
      candidates_[count++] = {id, shield, b.state == State::Clean, b.paged_bytes, age(id), b.transient};
    } else {
      areas_refused_ = true;
    }
  }
  counters_.looked_at += blocks_.live().size();
  looks_unused_ = blocks_.live().size() / kLooksPerVictim;
  ready_since_ = stamp_;
  ready_for_schedule_ = replay_.active();
  auto candidates = candidates_.first(count);
  std::size_t spare = looks_unused_;
  std::size_t victims = choose_victims(candidates, needed, policy_, {}, spare);
  std::uint64_t started = 0;
  for (const Candidate& victim : candidates.first(victims)) started += start_victim(victim);
  ready_ = candidates.subspan(victims, std::min(spare, count - victims));
  while (!ready_.empty() && ready_.back().shield != Shield::None) ready_ = ready_.first(ready_.size() - 1);
  return started;
}

}  // namespace ebbtide
