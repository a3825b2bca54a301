#include "shortage.hpp"

#include <algorithm>

namespace ebbtide::simulate {

Shortage::Shortage(const Pieces& pieces, const Machine& machine, const Policy& rule, bool uses_in_place, Score score)
    : TierState(pieces, machine, uses_in_place), rule_(rule), score_(std::move(score)) {}

// Until so much of the first tier is free, or will be, or nothing more may leave.
void Shortage::make_room(std::int64_t nbytes, bool is_forced) {
  std::int64_t lacking = nbytes - free(0) - evicting_bytes_;
  if (lacking <= 0) return;
  if (is_forced) {
    is_short_ = was_short_ = true;
    lacking += static_cast<std::int64_t>(batch_bytes(rule_, static_cast<std::uint64_t>(machine_.tiers[0].capacity)));
  }
  for (Piece piece : victims(0, lacking, [this](Piece other) { return evictable(other); })) {
    if (!evict(piece)) break;
    transient_[piece] = 1;
    if (is_forced) ++record_.rescues;
  }
}

void Shortage::end_step() {
  is_short_ = was_short_;
  was_short_ = false;
}

void Shortage::depart(std::size_t tick) {
  if (rule_.evict_after_use == EvictAfterUse::Nothing) return;
  for (const Use& use : pieces_.uses[tick]) {
    if (evicts_after_use(rule_, transient_[use.piece] != 0) && evictable(use.piece)) evict(use.piece);
  }
}

void Shortage::go_ahead() {
  std::int64_t capacity = machine_.tiers[0].capacity;
  if (rule_.high <= 0 || capacity >= kUnlimited || (!rule_.ahead_of_pressure && !is_short_)) return;
  std::int64_t spare = std::max<std::int64_t>(free(0) + evicting_bytes_, 0);
  auto ahead = ahead_bytes(rule_, static_cast<std::uint64_t>(capacity), static_cast<std::uint64_t>(spare));
  if (ahead != 0) make_room(spare + static_cast<std::int64_t>(ahead), false);
}

template <typename Evictable>
std::vector<Piece> Shortage::victims(unsigned rank, std::int64_t nbytes, const Evictable& evictable) {
  if (!order_) {
    room_.assign(pieces_.paged_bytes.begin(), pieces_.paged_bytes.end());
    order_.emplace(rule_, Columns{valid_, evicting_, room_, last_use_, next_use_, pieces_.moves, transient_}, n_tiers_, score_);
  }
  return order_->victims(rank, static_cast<std::uint64_t>(nbytes), at_, evictable);
}

void Shortage::evict_for(const std::vector<Piece>& missing) {
  std::int64_t wanted = 0;
  for (Piece piece : unborn_) wanted += pieces_.paged_bytes[piece];
  for (Piece piece : missing) {
    if ((valid_[piece] & 1) != 0) continue;
    wanted += pieces_.paged_bytes[piece];
    for (const Copy* copy : copies_[piece]) wanted -= copy->target == 0 ? copy->taken : 0;
  }
  make_room(wanted, true);
}

// Compute waits, and nothing is under way that could help.
void Shortage::unstick(std::size_t tick) {
  for (const Copy* copy : links_.heads()) {
    if (copy->target != 0 && make_slow_room(*copy)) return;
  }
  for (Copy* copy : links_.queued()) {
    if (copy->target == 0 && copy->taken != 0 && pinned_[copy->piece] == 0) {
      cancel(*copy);
      return;
    }
  }
  if (!move_an_elder()) throw DoesNotFit{tick};
}

// The safety net knows no plan, so it takes what a plan cannot name, too; how long that takes is left out.
bool Shortage::move_an_elder() {
  for (Piece piece : with_elders_) {
    for (Held& held : elders_[piece]) {
      if (held[0] == 0 || pieces_.moves[piece] == 0) continue;
      auto lacks = [&](unsigned rank) { return room(piece, rank) - held[rank]; };
      unsigned target = 1;
      while (target < n_tiers_ && (!may_lie(piece, target) || (lacks(target) > 0 && !fits(target, lacks(target))))) ++target;
      if (target == n_tiers_) continue;
      record_.change(target, lacks(target), now_);
      record_.change(0, -held[0], now_);
      held[target] += lacks(target);
      held[0] = 0;
      ++record_.rescues;
      place_unborn();
      return true;
    }
  }
  return false;
}

// For a copy that waits at the head of its link: where a replica can go, or contents can move on.
bool Shortage::make_slow_room(const Copy& copy) {
  unsigned rank = copy.target;
  std::int64_t needed = room(copy.piece, rank) - copy.taken;
  std::int64_t began = free(rank);
  if (fits(rank, 0) && needed <= began) return false;  // it has room, so something else holds it
  auto is_free = [this](Piece piece) { return copies_[piece].empty() && pinned_[piece] == 0; };
  auto is_double = [&](Piece piece) { return is_free(piece) && (valid_[piece] & ~bit(rank)) != 0; };
  auto has_only_plans = [this](Piece piece) {
    return std::ranges::none_of(copies_[piece], [](const Copy* other) { return other->has_begun(); });
  };
  for (Piece piece : victims(rank, std::max<std::int64_t>(needed - began, 1), is_double)) drop(piece, rank);
  if (free(rank) > began) return true;
  for (bool may_plan : {false, true}) {  // the latter: two that wait for each other's room
    auto who = [&](Piece piece) { return may_plan ? has_only_plans(piece) : is_free(piece); };
    for (Piece piece : victims(rank, 1, who)) {
      auto below = target_of(piece, rank);
      if (!below || !has_room(piece, *below)) return false;
      for (Copy* planned : std::vector(copies_[piece])) cancel(*planned);
      put(piece, rank, *below, at_);
      drop(piece, rank);
      return true;
    }
  }
  return false;
}

}  // namespace ebbtide::simulate
