#include "stays.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace ebbtide::search {

namespace {

struct Move {
  std::int64_t out, done, gone, back, until, group, tier;
  bool returns;
};

class Stayer {
 public:
  Stayer(const Homes& homes, simulate::Stays& found) : homes_(homes), found_(found) {}

  void of(std::size_t storage, std::vector<Move>& moves) {
    std::int64_t birth = homes_.birth[storage], death = homes_.death[storage];
    if (death - birth > homes_.n_ticks) {
      for (Move& move : moves) leave_before(birth + homes_.n_ticks, move);
    }
    std::ranges::stable_sort(moves, std::less<>(), &Move::gone);
    in_fast(storage, moves);
    in_slow(storage, moves);
  }

 private:
  // Gone by then, when a command would mean its successor ([Note: elders] in idle_table.py).
  static void leave_before(std::int64_t tick, Move& move) {
    move.gone = std::min(move.gone, tick);
    move.done = std::min(move.done, move.gone);
    move.out = std::min(move.out, move.done);
  }

  // Room between one interval and the next.
  void in_fast(std::size_t storage, const std::vector<Move>& moves) {
    if (homes_.persistent[storage] != 0) {
      for (std::size_t at = 0; at < moves.size(); ++at) {
        const Move &before = moves[at], &next = moves[(at + 1) % moves.size()];
        add(storage, 0, before.back, before.until, next.gone > before.back ? next.gone : next.gone + homes_.n_ticks);
      }
      return;
    }
    std::int64_t start = homes_.birth[storage], valid_from = start;
    for (const Move& move : moves) {
      add(storage, 0, start, valid_from, move.gone);
      start = move.back, valid_from = move.until;
    }
    if (moves.back().returns) add(storage, 0, start, valid_from, homes_.death[storage]);
  }

  // A replica from the write that a group pays for to its last fetch; of what is never written, for ever.
  void in_slow(std::size_t storage, const std::vector<Move>& moves) {
    if (homes_.dirty[static_cast<std::size_t>(moves.front().group)] == 0) {
      add(storage, moves.front().tier, 0, 0, homes_.n_ticks);
      return;
    }
    std::vector<std::int64_t> groups;
    for (const Move& move : moves) {
      if (std::ranges::find(groups, move.group) == groups.end()) groups.push_back(move.group);
    }
    for (std::int64_t group : groups) {
      auto first = std::ranges::find(moves, group, &Move::group);
      auto last = std::ranges::find(moves.rbegin(), moves.rend(), group, &Move::group);
      add(storage, first->tier, first->out, first->done, last->returns ? last->until : homes_.death[storage]);
    }
  }

  void add(std::size_t storage, std::int64_t tier, std::int64_t start, std::int64_t valid_from, std::int64_t stop) {
    std::int64_t shift = homes_.persistent[storage] != 0 ? start / homes_.n_ticks * homes_.n_ticks : 0;
    found_.storage.push_back(static_cast<std::int64_t>(storage));
    found_.tier.push_back(tier);
    found_.start.push_back(start - shift);
    found_.valid_from.push_back(valid_from - shift);
    found_.stop.push_back(stop - shift);
  }

  const Homes& homes_;
  simulate::Stays& found_;
};

void check(const Moved& moved, const Moves& moves, const Homes& homes) {
  std::size_t count = moved.storage.size();
  for (std::size_t size : {moved.group.size(), moved.until.size(), moved.tier.size(), moved.returns.size(), moves.out.size(),
                           moves.done.size(), moves.gone.size(), moves.back.size()}) {
    if (size != count) throw std::invalid_argument("columns of moves differ in length");
  }
  if (homes.birth.size() != homes.death.size() || homes.birth.size() != homes.persistent.size() || homes.n_ticks <= 0) {
    throw std::invalid_argument("columns of storages differ in length");
  }
  auto n_storages = static_cast<std::int64_t>(homes.birth.size()), n_groups = static_cast<std::int64_t>(homes.dirty.size());
  for (std::size_t at = 0; at < count; ++at) {
    bool known = 0 <= moved.storage[at] && moved.storage[at] < n_storages && 0 <= moved.group[at] && moved.group[at] < n_groups;
    if (!known) throw std::invalid_argument("a move is of no storage, or of no group");
  }
  if (!std::ranges::is_sorted(moved.storage)) throw std::invalid_argument("moves are not in the order of their storages");
}

}  // namespace

simulate::Stays stays_of(const Moved& moved, const Moves& moves, const Homes& homes) {
  check(moved, moves, homes);
  simulate::Stays found;
  Stayer stayer(homes, found);
  std::vector<Move> mine;
  for (std::size_t at = 0; at < moved.storage.size(); ++at) {
    mine.push_back({moves.out[at], moves.done[at], moves.gone[at], moves.back[at], moved.until[at], moved.group[at],
                    moved.tier[at], moved.returns[at] != 0});
    bool is_last = at + 1 == moved.storage.size() || moved.storage[at + 1] != moved.storage[at];
    if (!is_last) continue;
    stayer.of(static_cast<std::size_t>(moved.storage[at]), mine);
    mine.clear();
  }
  return found;
}

}  // namespace ebbtide::search
