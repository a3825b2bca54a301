#include "online.hpp"

namespace ebbtide::simulate {

Online::Online(const Pieces& pieces, const Machine& machine, const Policy* policy, Score score)
    : Shortage(pieces, machine, policy != nullptr ? *policy : *find_policy("lru-next-use"),
               policy == nullptr || policy->born_in_place, std::move(score)),
      in_place_(rule_.born_in_place),
      promotes_(in_place_ && rule_.promotes),
      seen_(promotes_ ? pieces.size() : 0, -1) {}

unsigned Online::home(Piece piece) {
  if (!in_place_ || pieces_.moves[piece] == 0) return 0;
  if (promotes_) {
    if (fits(0, pieces_.paged_bytes[piece])) return 0;
    for (unsigned rank = 1; rank < n_tiers_; ++rank) {
      if (writes_in_place(rank)) return rank;
    }
    return 0;
  }
  unsigned rank = 0;
  while (rank < n_tiers_ && !has_room(piece, rank)) ++rank;
  if (rank == n_tiers_) rank = 0;
  transient_[piece] = rank > 0;  // what operations cannot use where it is leaves after each of them
  return pieces_.persistent[piece] != 0 || writes_in_place(rank) ? rank : 0;
}

void Online::see(Piece piece) {
  if (!promotes_) return;
  if (seen_[piece] >= 0 && at_ - seen_[piece] <= static_cast<std::int64_t>(n_ticks_)) hot_.insert(piece);
  seen_[piece] = at_;
}

void Online::promote_hot() {
  for (auto at = hot_.begin(); at != hot_.end();) {
    Piece piece = *at;
    std::int64_t paged = pieces_.paged_bytes[piece];
    bool is_only_slow = valid_[piece] != 0 && (valid_[piece] & 1) == 0;
    if (is_only_slow && !fits(0, paged)) {
      make_room(paged, false);
      if (evicting_bytes_ != 0) {  // until it has left
        ++at;
        continue;
      }
    }
    at = hot_.erase(at);
    promote(piece);
  }
}

// Beside the compute, if there is room and a link.
void Online::promote(Piece piece) {
  if ((valid_[piece] & 1) != 0 || !copies_[piece].empty() || pieces_.moves[piece] == 0) return;
  auto source = source_of(piece);
  if (source && hop_[*source] == 0 && fits(0, pieces_.paged_bytes[piece])) {
    put(piece, *source, 0, at_ + 2 * static_cast<std::int64_t>(n_ticks_));
  }
}

}  // namespace ebbtide::simulate
