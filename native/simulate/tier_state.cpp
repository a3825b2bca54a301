#include "tier_state.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace ebbtide::simulate {

namespace {
constexpr std::int64_t kNoTick = std::numeric_limits<std::int64_t>::max();
}  // namespace

TierState::TierState(const Pieces& pieces, const Machine& machine, bool uses_in_place)
    : pieces_(pieces),
      machine_(machine),
      n_ticks_(pieces.n_ticks()),
      n_tiers_(static_cast<unsigned>(machine.tiers.size())),
      usable_{0, 1, 1, 1},
      valid_(pieces.size()),
      reserved_(pieces.size()),
      evicting_(pieces.size()),
      last_use_(pieces.size(), -1),
      next_use_(pieces.first_use),
      transient_(pieces.size()),
      elders_(pieces.size()),
      had_elders_(pieces.size()),
      copies_(pieces.size()),
      due_back_(pieces.size(), kNoTick),
      promised_(n_tiers_),
      pinned_(pieces.size()),
      record_(n_tiers_),
      links_(machine, *this),
      hop_(n_tiers_, -1) {
  for (unsigned rank = 0; rank < n_tiers_; ++rank) {
    for (unsigned mode : {kRead, kWrite, kRead | kWrite}) {
      const Tier& tier = machine.tiers[rank];
      if (uses_in_place && ((mode & kWrite) != 0 ? tier.writes : tier.reads)) usable_[mode] |= bit(rank);
    }
  }
  find_hops();
}

void TierState::find_hops() {
  hop_[0] = 0;
  std::vector<unsigned> ends{0};
  for (std::size_t at = 0; at < ends.size(); ++at) {
    for (unsigned rank = 0; rank < n_tiers_; ++rank) {
      if (hop_[rank] >= 0 || !links_.between(rank, ends[at])) continue;
      hop_[rank] = static_cast<int>(ends[at]);
      if (!machine_.tiers[rank].packs) ends.push_back(rank);  // not everything could stop there
    }
  }
}

// ---- tiers ---------------------------------------------------------------------------------------------------------

bool TierState::fits(unsigned rank, std::int64_t nbytes) const { return free(rank) - promised_[rank] >= nbytes; }

bool TierState::is_there(Piece piece, unsigned rank) const {
  return (valid_[piece] & ~evicting_[piece] & bit(rank)) != 0 && pieces_.moves[piece] != 0;
}

// Whether the tick at hand can use it there alone. Moves of an exclusive machine go on all the same.
bool TierState::is_held(Piece piece, unsigned rank) const {
  return (valid_[piece] & usable_[pinned_[piece]]) == bit(rank) && !machine_.exclusive;
}

bool TierState::evictable(Piece piece) const { return pinned_[piece] == 0 && is_there(piece, 0); }

bool TierState::reads(Piece piece, unsigned rank) const {
  return std::ranges::any_of(copies_[piece], [&](const Copy* copy) { return copy->source == rank; });
}

bool TierState::evict(Piece piece) {
  if ((valid_[piece] & ~Ranks{1}) == 0 && !reads(piece, 0)) {
    auto target = target_of(piece, 0);
    if (!target) return false;
    put(piece, 0, *target, at_);
  }
  drop(piece, 0);
  return true;
}

bool TierState::admits(Copy& copy, std::int64_t nbytes) {
  if (machine_.tiers[copy.target].packs) {  // what its chunks come to is known at its end: all at once
    nbytes = copy.has_begun() ? 0 : room(copy.piece, copy.target);
  } else if (!copy.has_begun()) {
    nbytes += pieces_.paged_bytes[copy.piece] - pieces_.nbytes[copy.piece];
  }
  if (copy.target == 0 && !unborn_.empty()) {
    if (machine_.exclusive) {
      place_unborn();
    } else if (pinned_[copy.piece] == 0) {
      return false;
    }
  }
  if (nbytes > free(copy.target)) return false;
  copy.taken += nbytes;
  promised_[copy.target] -= nbytes;
  record_.change(copy.target, nbytes, now_);
  return true;
}

void TierState::arrived(Copy& copy, std::int64_t nbytes) {
  Piece piece = copy.piece;
  unsigned source = copy.source;
  if (copy.dead) {
    record_.change(copy.target, -copy.taken, now_);
    return;
  }
  if (machine_.exclusive && (evicting_[piece] & bit(source)) == 0) mark_evicting(piece, source);
  bool is_alone = std::ranges::count_if(copies_[piece], [&](const Copy* other) { return other->source == source; }) == 1;
  bool leaves = (evicting_[piece] & bit(source)) != 0 && !is_held(piece, source);
  if (copy.left != 0 && is_alone && leaves && !machine_.tiers[source].packs) {
    valid_[piece] &= ~bit(source);
    copy.freed += nbytes;
    release(source, nbytes);
  }
  if (copy.left != 0) return;
  forget(copy);
  valid_[piece] |= bit(copy.target);
  reserved_[piece] |= bit(copy.target);
  note_change(piece);
  if ((evicting_[piece] & bit(source)) != 0) free_if_done(piece, source, copy.freed);
  std::int64_t due = std::exchange(due_back_[piece], kNoTick);
  if (due != kNoTick && hop_[copy.target] == 0) put(piece, copy.target, 0, due);
}

void TierState::ended(const Copy& copy, std::size_t link) {
  SpanKind kind = copy.target < copy.source ? SpanKind::Fetch : SpanKind::Evict;
  record_.copied(link, kind, copy.began, now_, pieces_.storage[copy.piece], pieces_.nbytes[copy.piece] - copy.left);
}

void TierState::note_change(Piece piece) {
  if (order_) order_->changed(piece);
}

void TierState::take(Piece piece, unsigned rank) {
  valid_[piece] |= bit(rank);
  reserved_[piece] |= bit(rank);
  record_.change(rank, room(piece, rank), now_);
  note_change(piece);
}

void TierState::release(unsigned rank, std::int64_t nbytes) {
  record_.change(rank, -nbytes, now_);
  if (rank == 0) evicting_bytes_ -= nbytes;
}

// Frees the bytes once the copies from there are done.
void TierState::drop(Piece piece, unsigned rank) {
  if ((evicting_[piece] & bit(rank)) != 0 || (reserved_[piece] & bit(rank)) == 0) return;
  if (!reads(piece, rank) && (valid_[piece] & ~evicting_[piece] & ~bit(rank)) == 0) {
    if (machine_.exclusive && rank == 0 && (valid_[piece] & ~Ranks{1}) == 0) evict(piece);  // else another goes, too
    return;
  }
  mark_evicting(piece, rank);
  free_if_done(piece, rank);
}

void TierState::mark_evicting(Piece piece, unsigned rank) {
  evicting_[piece] |= bit(rank);
  if (rank == 0) evicting_bytes_ += pieces_.paged_bytes[piece];
}

// Takes back an eviction or a drop.
void TierState::cancel_eviction(Piece piece, unsigned rank) {
  evicting_[piece] &= ~bit(rank);
  if (rank == 0) evicting_bytes_ -= pieces_.paged_bytes[piece];
  note_change(piece);
}

void TierState::free_if_done(Piece piece, unsigned rank, std::int64_t freed) {
  if (reads(piece, rank)) return;
  if ((valid_[piece] & ~bit(rank)) == 0 || is_held(piece, rank)) {
    cancel_eviction(piece, rank);
    return;
  }
  valid_[piece] &= ~bit(rank);
  reserved_[piece] &= ~bit(rank);
  evicting_[piece] &= ~bit(rank);
  note_change(piece);
  release(rank, room(piece, rank) - freed);
}

// What the tick uses and cannot use yet.
std::vector<Piece> TierState::missing(std::size_t tick) const {
  std::vector<Piece> found;
  for (const Use& use : pieces_.uses[tick]) {
    Ranks valid = valid_[use.piece], here = valid & usable_[use.mode];
    if (machine_.exclusive) here &= ~evicting_[use.piece];
    if ((here & 1) != 0) continue;
    if (valid == 0 && std::ranges::find(unborn_, use.piece) != unborn_.end()) continue;
    auto is_due = [&](const Copy* copy) { return copy->target == 0 && copy->due <= at_; };
    if (here != 0 && std::ranges::none_of(copies_[use.piece], is_due)) continue;
    found.push_back(use.piece);
  }
  return found;
}

// To what is born, in order. On an exclusive machine it comes last, when all else that the tick needs is there, and all at once:
// until then copies may take the room (the judge of tiertrace/1).
void TierState::place_unborn() {
  if (machine_.exclusive) {
    if (unborn_.empty()) return;
    std::int64_t wanted = 0;
    for (Piece piece : unborn_) wanted += pieces_.paged_bytes[piece];
    if (wanted > free(0) || !missing(static_cast<std::size_t>(at_) % n_ticks_).empty()) return;
  }
  while (!unborn_.empty() && (machine_.exclusive || pieces_.paged_bytes[unborn_.front()] <= free(0))) {
    Piece piece = unborn_.front();
    unborn_.pop_front();
    take(piece, 0);
  }
}

void TierState::cancel_all(Piece piece) {
  for (Copy* copy : std::vector(copies_[piece])) cancel(*copy);
}

// A storage's contents are gone.
void TierState::die(Piece piece) {
  auto& elders = elders_[piece];
  if (elders.empty()) elders.push_back(give_up(piece));
  for (unsigned rank = 0; rank < n_tiers_; ++rank) {
    if (elders[0][rank] != 0) record_.change(rank, -elders[0][rank], now_);
  }
  elders.erase(elders.begin());
}

// Its successor is about to be born: it stays where it is, and what it was about to do is not done.
void TierState::grow_old(Piece piece) {
  if (had_elders_[piece] == 0) with_elders_.push_back(piece);
  had_elders_[piece] = 1;
  elders_[piece].push_back(give_up(piece));
  note_change(piece);
}

// Returns its reserved bytes by tier, for which callers MUST answer from now on. What of it has gone stays where it went.
Held TierState::give_up(Piece piece) {
  Held held(n_tiers_);
  for (unsigned rank = 0; rank < n_tiers_; ++rank) {
    if ((reserved_[piece] & bit(rank)) != 0) held[rank] = room(piece, rank);
    if ((evicting_[piece] & bit(rank)) != 0) cancel_eviction(piece, rank);
  }
  for (Copy* copy : std::vector(copies_[piece])) {
    std::int64_t gone = std::exchange(copy->freed, 0), there = std::min(gone, copy->taken);
    held[copy->source] -= gone;
    held[copy->target] += there;
    copy->taken -= there;
    promised_[copy->target] += there;
    if (copy->source == 0) evicting_bytes_ += gone;
    cancel(*copy);
  }
  valid_[piece] = reserved_[piece] = 0;
  return held;
}

// All but the replica that is written are gone.
void TierState::overwrite(Piece piece, unsigned rank) {
  cancel_all(piece);
  for (unsigned other = 0; other < n_tiers_; ++other) {
    if ((evicting_[piece] & bit(other)) != 0) cancel_eviction(piece, other);
    if (other != rank && (reserved_[piece] & bit(other)) != 0) record_.change(other, -room(piece, other), now_);
  }
  valid_[piece] = reserved_[piece] = bit(rank);
}

// ---- copies --------------------------------------------------------------------------------------------------------

void TierState::put(Piece piece, unsigned source, unsigned target, std::int64_t due, bool demanded) {
  Copy copy{.piece = piece, .source = source, .target = target, .left = pieces_.nbytes[piece], .due = due};
  copy.demanded = copy.urgent = demanded;
  copies_[piece].push_back(&links_.put(copy));
  promised_[target] += room(piece, target);
  if (record_.is_kept)
    record_.queued.push_back({at_ % static_cast<std::int64_t>(n_ticks_), pieces_.storage[piece], source, target});
}

void TierState::forget(Copy& copy) { std::erase(copies_[copy.piece], &copy); }

// What the copy gave up on its source comes back.
void TierState::cancel(Copy& copy) {
  forget(copy);
  due_back_[copy.piece] = kNoTick;
  promised_[copy.target] -= room(copy.piece, copy.target) - copy.taken;
  if (copy.chunk == 0) record_.change(copy.target, -copy.taken, now_);
  if (copy.freed != 0) {
    record_.change(copy.source, copy.freed, now_);
    valid_[copy.piece] |= bit(copy.source);
    if (copy.source == 0) evicting_bytes_ += copy.freed;
  }
  links_.cancel(copy);
}

// The fastest tier with valid contents and a way to the first.
std::optional<unsigned> TierState::source_of(Piece piece) const {
  for (unsigned rank = 1; rank < n_tiers_; ++rank) {
    if ((valid_[piece] & bit(rank)) != 0 && hop_[rank] >= 0) return rank;
  }
  return std::nullopt;
}

// The fastest tier below with a link and room; without any room the fastest, where room can be made.
std::optional<unsigned> TierState::target_of(Piece piece, unsigned source) const {
  std::optional<unsigned> large_enough;
  for (unsigned rank = source + 1; rank < n_tiers_; ++rank) {
    if (!links_.between(source, rank)) continue;
    if (!may_lie(piece, rank)) continue;
    if (has_room(piece, rank)) return rank;
    if (!large_enough && machine_.tiers[rank].capacity >= room(piece, rank)) large_enough = rank;
  }
  return large_enough;
}

// The tick needs the piece in the first tier.
void TierState::demand(Piece piece) {
  for (Copy* copy : copies_[piece]) {
    if (copy->target == 0) {
      links_.hurry(*copy);
      return;
    }
  }
  if ((valid_[piece] & evicting_[piece] & 1) != 0) {
    keep(piece);
    return;
  }
  auto source = source_of(piece);
  if ((reserved_[piece] & 1) != 0 || !source || (evicting_[piece] & bit(*source)) != 0) return;  // once it has arrived
  auto hop = static_cast<unsigned>(hop_[*source]);
  if (std::ranges::any_of(copies_[piece], [&](const Copy* copy) { return copy->target == hop; })) return;
  record_.demand_fetch(pieces_.nbytes[piece]);
  put(piece, *source, hop, at_, true);
}

// What is about to leave the first tier stays, and a move of it is not done. False: the move has begun.
bool TierState::keep(Piece piece) {
  if (machine_.exclusive) {
    if (std::ranges::any_of(copies_[piece], &Copy::has_begun)) return false;
    cancel_all(piece);
  }
  cancel_eviction(piece, 0);
  return true;
}

// ---- what is checked in tests --------------------------------------------------------------------------------------

void TierState::check_state() const {
  auto require = [&](bool holds, const char* what) {
    if (!holds) throw std::logic_error("tick " + std::to_string(at_) + " of the simulation: " + what);
  };
  std::vector<std::int64_t> used(n_tiers_), promised(n_tiers_);
  std::int64_t evicting_bytes = 0;
  auto reserve = [&](Piece piece, Ranks ranks) {
    for (unsigned rank = 0; rank < n_tiers_; ++rank) {
      if ((ranks & bit(rank)) == 0) continue;
      require(may_lie(piece, rank), "what does not shrink lies on a tier that packs");
      used[rank] += room(piece, rank);
    }
  };
  for (Piece piece = 0; piece < pieces_.size(); ++piece) {
    require((valid_[piece] & ~reserved_[piece]) == 0, "contents are valid where no bytes are reserved");
    require((evicting_[piece] & ~reserved_[piece]) == 0, "what is to leave has no bytes reserved");
    evicting_bytes += pieces_.paged_bytes[piece] * static_cast<std::int64_t>(evicting_[piece] & 1);
    reserve(piece, reserved_[piece]);
    for (const Held& elder : elders_[piece]) {
      for (unsigned rank = 0; rank < n_tiers_; ++rank) used[rank] += elder[rank];
    }
    for (const Copy* copy : copies_[piece]) {
      used[copy->target] += copy->taken;
      used[copy->source] -= copy->freed;
      promised[copy->target] += room(piece, copy->target) - copy->taken;
      evicting_bytes -= copy->source == 0 ? copy->freed : 0;
    }
  }
  for (const Copy* copy : links_.queued()) used[copy->target] += copy->dead ? copy->taken : 0;
  require(used == record_.used, "a tier's reserved bytes are not those of its pieces and copies");
  require(promised == promised_, "the bytes that copies will reserve are not those of the copies");
  require(evicting_bytes == evicting_bytes_, "the bytes about to leave the first tier are not those of its pieces");
}

}  // namespace ebbtide::simulate
