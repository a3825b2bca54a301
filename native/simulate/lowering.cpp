#include "lowering.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace ebbtide::simulate {

namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 62;

struct Placed {
  Command command;
  bool is_last = false;
};

struct Interval {
  std::int64_t low, high;
};

class Lowering {
 public:
  Lowering(const Stays& stays, const Storages& storages, const Ways& ways)
      : stays_(stays), storages_(storages), ways_(ways), n_ticks_(storages.n_ticks) {
    check();
  }

  Commands commands() {
    std::size_t count = stays_.storage.size();
    for (std::size_t first = 0, last; first < count; first = last) {
      last = first + 1;
      while (last < count && stays_.storage[last] == stays_.storage[first]) ++last;
      of_storage(first, last);
    }
    return {ordered(), std::move(begins_)};
  }

 private:
  void check() const {
    std::size_t count = stays_.storage.size(), n_storages = storages_.birth.size();
    for (std::size_t size : {stays_.tier.size(), stays_.start.size(), stays_.valid_from.size(), stays_.stop.size()}) {
      if (size != count) throw std::invalid_argument("columns of stays differ in length");
    }
    bool one_each = storages_.death.size() == n_storages && storages_.persistent.size() == n_storages;
    if (!one_each || storages_.use_starts.size() != n_storages + 1 || n_storages >= kNever) {
      throw std::invalid_argument("columns of storages differ in length");
    }
    bool in_uses = std::ranges::is_sorted(storages_.use_starts) && storages_.use_starts.back() == storages_.use_ticks.size();
    if (!in_uses) throw std::invalid_argument("uses are not in the order of their storages");
    if (n_ticks_ <= 0 || n_ticks_ >= std::int64_t{kNever}) throw std::invalid_argument("a step has no ticks, or too many");
    for (std::size_t at = 0; at < count; ++at) {
      bool known = 0 <= stays_.storage[at] && stays_.storage[at] < static_cast<std::int64_t>(n_storages) &&
                   0 <= stays_.tier[at] && stays_.tier[at] < static_cast<std::int64_t>(ways_.size());
      bool in_order = 0 <= stays_.start[at] && stays_.start[at] <= stays_.valid_from[at] &&
                      stays_.valid_from[at] < stays_.stop[at] && stays_.stop[at] <= kLargest;
      if (!known || !in_order) throw std::invalid_argument("a stay is of no storage or tier, or of no time");
    }
  }

  void of_storage(std::size_t first, std::size_t last) {
    storage_ = static_cast<std::uint32_t>(stays_.storage[first]);
    bool persistent = storages_.persistent[storage_] != 0;
    begin(first, last, persistent);
    std::int64_t life = storages_.death[storage_] - storages_.birth[storage_];
    if (last - first == 1 && stays_.stop[first] - stays_.start[first] == life) return;  // it never moves
    std::int64_t period = persistent ? n_ticks_ : kLargest;  // after which its stays come again
    std::set<std::pair<std::int64_t, std::int64_t>> starts, stops;
    for (std::size_t at = first; at < last; ++at) {
      if (stays_.valid_from[at] == stays_.start[at]) starts.emplace(stays_.tier[at], stays_.start[at] % period);
      stops.emplace(stays_.tier[at], stays_.stop[at] % period);
    }
    note_valid(first, last, persistent);
    for (std::size_t at = first; at < last; ++at) {
      std::int64_t start = stays_.start[at], due = stays_.valid_from[at], stop = stays_.stop[at];
      auto tier = static_cast<Rank>(stays_.tier[at]);
      bool born = due == start && start == storages_.birth[storage_] && !persistent;
      bool goes_on = due == start && stops.contains({stays_.tier[at], start % period});
      if (!born && !goes_on) add_copy(start, due, tier, persistent);
      bool dies = !persistent && stop == storages_.death[storage_];
      if (!dies && !starts.contains({stays_.tier[at], stop % period})) {
        Command drop = command(stop, stop);
        drop.verb = Verb::Drop;
        drop.source = tier;
        drop.target = tier == kFast ? slower_with(stop) : kFast;
        found_.push_back({drop});
      }
    }
  }

  // Nothing for a storage that begins on the first tier alone.
  void begin(std::size_t first, std::size_t last, bool persistent) {
    std::int64_t birth = storages_.birth[storage_];
    std::vector<Begin> here;
    for (std::size_t at = first; at < last; ++at) {
      auto holds = [&](std::int64_t tick) { return stays_.valid_from[at] <= tick && tick < stays_.stop[at]; };
      if (!holds(birth) && !(persistent && holds(birth + n_ticks_))) continue;
      here.push_back({storage_, static_cast<Rank>(stays_.tier[at])});
    }
    bool on_first_alone = std::ranges::all_of(here, [](const Begin& row) { return row.tier == kFast; });
    if (!on_first_alone) begins_.insert(begins_.end(), here.begin(), here.end());
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
    valid_.assign(ways_.size(), {});
    for (auto [low, high, tier] : rows) {
      auto& known = valid_[static_cast<std::size_t>(tier)];
      if (!known.empty() && low <= known.back().high) {
        known.back().high = std::max(high, known.back().high);
      } else {
        known.push_back({low, high});
      }
    }
  }

  // From the fastest tier with a link to the target that is valid throughout the copy, or before it between two ticks.
  void add_copy(std::int64_t start, std::int64_t due, Rank target, bool persistent) {
    std::int64_t first = due == start ? start - 1 : start;
    for (Rank source : ways_[target]) {
      auto covers = [&](const Interval& known) { return known.low <= first && due <= known.high; };
      auto known = std::ranges::find_if(valid_[source], covers);
      if (known == valid_[source].end()) continue;
      Command copy = command(start, due);
      copy.verb = target > source ? Verb::Evict : Verb::Fetch;
      copy.source = source;
      copy.target = target;
      bool dies = !persistent && known->high == storages_.death[storage_];
      if (source == kFast && !dies) copy.then = then(start, known->high);
      if (target == kFast) copy.earliest = earliest(start);
      found_.push_back({copy});
      return;
    }
  }

  // Of an eviction, given when what it copies is dropped: whether that is in the same step, and before a use.
  Then then(std::int64_t start, std::int64_t dropped) const {
    auto use = std::ranges::lower_bound(uses(), start);
    bool used = use != uses().end() && *use < dropped;
    return dropped / n_ticks_ == start / n_ticks_ && !used ? Then::Drop : Then::Keep;
  }

  // Of a fetch, in its step: not before it was dropped, nor before its last use is over.
  std::uint32_t earliest(std::int64_t start) const {
    std::int64_t step = start / n_ticks_ * n_ticks_, found = step;
    for (const Interval& known : valid_[kFast]) {
      if (known.high <= start) found = std::max(found, known.high);
    }
    auto use = std::ranges::lower_bound(uses(), start);
    if (use != uses().begin()) found = std::max(found, *std::prev(use) + 1);
    return static_cast<std::uint32_t>(found - step);
  }

  // Where the storage is when it is dropped from fast memory.
  Rank slower_with(std::int64_t tick) const {
    for (std::size_t tier = 1; tier < valid_.size(); ++tier) {
      auto holds = [&](const Interval& known) { return known.low <= tick && tick < known.high; };
      if (std::ranges::any_of(valid_[tier], holds)) return static_cast<Rank>(tier);
    }
    return 1;
  }

  std::span<const std::int64_t> uses() const {
    std::size_t first = storages_.use_starts[storage_];
    return std::span(storages_.use_ticks).subspan(first, storages_.use_starts[storage_ + 1] - first);
  }

  std::uint32_t in_step(std::int64_t tick) const { return static_cast<std::uint32_t>(tick % n_ticks_); }

  // The rest of it is the caller's.
  Command command(std::int64_t tick, std::int64_t due) const {
    Command made{};
    made.tick = in_step(tick);
    made.storage = storage_;
    made.due = in_step(due);
    return made;
  }

  // At one tick: evictions, drops, which make room for fetches, and last the drops of what fetches read. Of several copies the
  // one that is due first goes first, since a link carries them in this order.
  std::vector<Command> ordered() {
    std::set<std::tuple<std::uint32_t, std::uint32_t, Rank>> fetched;
    for (const Placed& row : found_) {
      const Command& c = row.command;
      if (c.verb == Verb::Fetch) fetched.emplace(c.tick, c.storage, c.source);
    }
    for (Placed& row : found_) {
      const Command& c = row.command;
      row.is_last = c.verb == Verb::Drop && fetched.contains({c.tick, c.storage, c.source});
    }
    std::ranges::stable_sort(found_, std::less<>(), [this](const Placed& row) {
      const Command& c = row.command;
      std::int64_t later = (c.due + n_ticks_ - c.tick) % n_ticks_;
      return std::tuple(c.tick, row.is_last, c.verb, later, c.storage);
    });
    std::vector<Command> rows;
    rows.reserve(found_.size());
    for (const Placed& row : found_) rows.push_back(row.command);
    return rows;
  }

  const Stays& stays_;
  const Storages& storages_;
  const Ways& ways_;
  const std::int64_t n_ticks_;
  std::uint32_t storage_ = 0;                 // the one at hand
  std::vector<std::vector<Interval>> valid_;  // by tier, of that storage
  std::vector<Placed> found_;
  std::vector<Begin> begins_;
};

}  // namespace

Commands lower(const Stays& stays, const Storages& storages, const Ways& ways) {
  return Lowering(stays, storages, ways).commands();
}

}  // namespace ebbtide::simulate
