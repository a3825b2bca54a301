#include "lowering.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace ebbtide::simulate {

namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 62;

struct Placed {
  std::int64_t tick, storage;
  Command command;
  bool is_last = false;
};

class Lowering {
 public:
  Lowering(const Stays& stays, const Storages& storages, const Pieces& pieces, const Machine& machine)
      : stays_(stays), storages_(storages), n_ticks_(static_cast<std::int64_t>(pieces.n_ticks())), begins_(pieces.size()) {
    check(pieces, machine);
    sources_.resize(machine.tiers.size());
    for (unsigned source = 0; source < machine.tiers.size(); ++source) {
      for (const Link& link : machine.links) {
        if (link.source == source) sources_[link.target].push_back(source);
      }
    }
  }

  Commands commands() {
    std::size_t count = stays_.storage.size();
    for (std::size_t first = 0, last; first < count; first = last) {
      last = first + 1;
      while (last < count && stays_.storage[last] == stays_.storage[first]) ++last;
      of_storage(first, last);
    }
    return ordered();
  }

 private:
  using Interval = std::pair<std::int64_t, std::int64_t>;

  void check(const Pieces& pieces, const Machine& machine) const {
    std::size_t count = stays_.storage.size();
    for (std::size_t size : {stays_.tier.size(), stays_.start.size(), stays_.valid_from.size(), stays_.stop.size()}) {
      if (size != count) throw std::invalid_argument("columns of stays differ in length");
    }
    for (std::size_t size : {storages_.death.size(), storages_.persistent.size(), storages_.piece.size()}) {
      if (size != storages_.birth.size()) throw std::invalid_argument("columns of storages differ in length");
    }
    for (std::size_t at = 0; at < count; ++at) {
      bool known = 0 <= stays_.storage[at] && stays_.storage[at] < static_cast<std::int64_t>(storages_.birth.size()) &&
                   0 <= stays_.tier[at] && stays_.tier[at] < static_cast<std::int64_t>(machine.tiers.size());
      bool in_order = 0 <= stays_.start[at] && stays_.start[at] <= stays_.valid_from[at] &&
                      stays_.valid_from[at] < stays_.stop[at] && stays_.stop[at] <= kLargest;
      if (!known || !in_order) throw std::invalid_argument("a stay is of no storage or tier, or of no time");
    }
    bool is_piece = std::ranges::all_of(storages_.piece, [&](Piece piece) { return piece < pieces.size(); });
    if (!is_piece) throw std::invalid_argument("no such piece");
  }

  void of_storage(std::size_t first, std::size_t last) {
    auto storage = static_cast<std::size_t>(stays_.storage[first]);
    bool persistent = storages_.persistent[storage] != 0;
    begin(first, last, storage, persistent);
    std::int64_t life = storages_.death[storage] - storages_.birth[storage];
    if (last - first == 1 && stays_.stop[first] - stays_.start[first] == life) return;  // it never moves
    std::int64_t period = persistent ? n_ticks_ : kLargest;  // after which its stays come again
    std::set<std::pair<std::int64_t, std::int64_t>> starts, stops;
    for (std::size_t at = first; at < last; ++at) {
      if (stays_.valid_from[at] == stays_.start[at]) starts.emplace(stays_.tier[at], stays_.start[at] % period);
      stops.emplace(stays_.tier[at], stays_.stop[at] % period);
    }
    note_valid(first, last, persistent);
    for (std::size_t at = first; at < last; ++at) {
      auto tier = static_cast<unsigned>(stays_.tier[at]);
      bool between_ticks = stays_.valid_from[at] == stays_.start[at];
      bool born = between_ticks && stays_.start[at] == storages_.birth[storage] && !persistent;
      bool goes_on = between_ticks && stops.contains({stays_.tier[at], stays_.start[at] % period});
      if (auto source = born || goes_on ? std::nullopt : source_of(at)) {
        Verb verb = tier > *source ? Verb::Evict : Verb::Fetch;
        add(storage, verb, *source, tier, stays_.start[at], stays_.valid_from[at]);
      }
      bool dies = !persistent && stays_.stop[at] == storages_.death[storage];
      if (!dies && !starts.contains({stays_.tier[at], stays_.stop[at] % period})) {
        add(storage, Verb::Drop, tier, 0, stays_.stop[at], stays_.stop[at]);
      }
    }
  }

  // Nothing for a storage that begins on the first tier alone.
  void begin(std::size_t first, std::size_t last, std::size_t storage, bool persistent) {
    std::int64_t birth = storages_.birth[storage];
    std::vector<unsigned> here;
    for (std::size_t at = first; at < last; ++at) {
      auto holds = [&](std::int64_t tick) { return stays_.valid_from[at] <= tick && tick < stays_.stop[at]; };
      if (holds(birth) || (persistent && holds(birth + n_ticks_))) here.push_back(static_cast<unsigned>(stays_.tier[at]));
    }
    bool on_first_alone = std::ranges::all_of(here, [](unsigned rank) { return rank == 0; });
    if (!on_first_alone) begins_[storages_.piece[storage]] = std::move(here);
  }

  // Ticks in which each tier is valid, in this step and its neighbours; those that follow each other are one.
  void note_valid(std::size_t first, std::size_t last, bool persistent) {
    std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> rows;
    for (std::size_t at = first; at < last; ++at) {
      for (std::int64_t step : {-1, 0, 1}) {
        if (step != 0 && !persistent) continue;
        std::int64_t by = step * n_ticks_;
        rows.emplace_back(stays_.valid_from[at] + by, stays_.stop[at] + by, stays_.tier[at]);
      }
    }
    std::ranges::sort(rows);
    valid_.assign(sources_.size(), {});
    for (auto [low, high, tier] : rows) {
      auto& known = valid_[static_cast<std::size_t>(tier)];
      if (!known.empty() && low <= known.back().second) {
        known.back().second = std::max(high, known.back().second);
      } else {
        known.emplace_back(low, high);
      }
    }
  }

  // The fastest tier with a link to the stay's that is valid throughout the copy, or before it between two ticks.
  std::optional<unsigned> source_of(std::size_t at) const {
    std::int64_t from = stays_.start[at], until = stays_.valid_from[at];
    std::int64_t first = until == from ? from - 1 : from;
    for (unsigned source : sources_[static_cast<std::size_t>(stays_.tier[at])]) {
      auto covers = [&](const Interval& known) { return known.first <= first && until <= known.second; };
      if (std::ranges::any_of(valid_[source], covers)) return source;
    }
    return std::nullopt;
  }

  void add(std::size_t storage, Verb verb, unsigned source, unsigned target, std::int64_t at, std::int64_t due) {
    std::int64_t tick = at % n_ticks_, later = (due % n_ticks_ - tick + n_ticks_) % n_ticks_;
    found_.push_back({tick, static_cast<std::int64_t>(storage), Command{storages_.piece[storage], verb, source, target, later}});
  }

  // At one tick: evictions, drops, which make room for fetches, and last the drops of what fetches read. Of several copies the
  // one that is due first goes first, since a link carries them in this order.
  Commands ordered() {
    std::set<std::tuple<std::int64_t, std::int64_t, unsigned>> fetched;
    for (const Placed& row : found_) {
      if (row.command.verb == Verb::Fetch) fetched.emplace(row.tick, row.storage, row.command.source);
    }
    for (Placed& row : found_) {
      row.is_last = row.command.verb == Verb::Drop && fetched.contains({row.tick, row.storage, row.command.source});
    }
    std::ranges::stable_sort(found_, std::less<>(), [](const Placed& row) {
      return std::tuple(row.tick, row.is_last, row.command.verb, row.command.due, row.storage);
    });
    Commands made;
    made.at.starts.assign(static_cast<std::size_t>(n_ticks_) + 1, 0);
    for (const Placed& row : found_) {
      ++made.at.starts[static_cast<std::size_t>(row.tick) + 1];
      made.at.rows.push_back(row.command);
    }
    for (std::size_t tick = 0; tick < static_cast<std::size_t>(n_ticks_); ++tick)
      made.at.starts[tick + 1] += made.at.starts[tick];
    made.begins.starts.push_back(0);
    for (const auto& ranks : begins_) {
      made.begins.rows.insert(made.begins.rows.end(), ranks.begin(), ranks.end());
      made.begins.starts.push_back(made.begins.rows.size());
    }
    return made;
  }

  const Stays& stays_;
  const Storages& storages_;
  std::int64_t n_ticks_;
  std::vector<std::vector<unsigned>> sources_;  // by target, the ranks of the tiers with a link to it
  std::vector<std::vector<Interval>> valid_;    // by tier, of the storage at hand
  std::vector<std::vector<unsigned>> begins_;   // by piece
  std::vector<Placed> found_;
};

}  // namespace

Commands lower(const Stays& stays, const Storages& storages, const Pieces& pieces, const Machine& machine) {
  return Lowering(stays, storages, pieces, machine).commands();
}

}  // namespace ebbtide::simulate
