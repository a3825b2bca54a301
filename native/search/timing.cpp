#include "timing.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <tuple>

#include "levels.hpp"

namespace ebbtide::search {

namespace {

using Column = std::vector<std::int64_t>;
using Places = std::vector<std::size_t>;

constexpr double kEnd = 3.5;  // steps up to which a write's end is looked for

class Times {
 public:
  explicit Times(const Clock& clock) : clock_(clock) {}

  double of(std::int64_t tick) const { return clock_.reached[static_cast<std::size_t>(tick + clock_.n_ticks)]; }
  double step_ns() const { return clock_.step_ns; }
  std::int64_t first() const { return -clock_.n_ticks; }
  double base(double time) const { return std::floor(time / clock_.step_ns) * clock_.step_ns; }

  std::int64_t at_or_before(double time) const {
    auto place = std::ranges::upper_bound(clock_.reached, time) - clock_.reached.begin();
    return static_cast<std::int64_t>(place) - 1 - clock_.n_ticks;
  }

  std::int64_t at_or_after(double time) const {
    auto place = std::ranges::lower_bound(clock_.reached, time) - clock_.reached.begin();
    return static_cast<std::int64_t>(place) - clock_.n_ticks;
  }

 private:
  const Clock& clock_;
};

// The room that is free, as moves take it; ticks go round.
class Headroom {
 public:
  explicit Headroom(const Column& free) : free_(free), n_ticks_(static_cast<std::int64_t>(free.size())) {}

  // The first tick of [low, high] from which up to `high` there is room throughout.
  std::int64_t earliest(std::int64_t low, std::int64_t high, std::int64_t nbytes) const {
    std::int64_t base = base_of(low);
    return free_.last_below(low - base, high - base, nbytes) + 1 + base;
  }

  // The last tick of [low, high] up to which there is room throughout.
  std::int64_t latest(std::int64_t low, std::int64_t high, std::int64_t nbytes) const {
    std::int64_t base = base_of(low);
    return free_.first_below(low - base, high - base, nbytes) + base;
  }

  void take(std::int64_t low, std::int64_t high, std::int64_t nbytes) {
    std::int64_t base = base_of(low);
    free_.add(low - base, high - base, -nbytes);
  }

 private:
  std::int64_t base_of(std::int64_t low) const { return low - (low % n_ticks_ + n_ticks_) % n_ticks_; }

  Levels free_;
  std::int64_t n_ticks_;
};

// Sorts by a key. Places with equal keys keep their order.
template <typename Key>
Places sorted(Places places, const Key& key) {
  std::ranges::stable_sort(places, std::less<>(), key);
  return places;
}

template <typename Holds>
Places places_of(std::size_t count, const Holds& holds) {
  Places found;
  for (std::size_t at = 0; at < count; ++at) {
    if (holds(at)) found.push_back(at);
  }
  return found;
}

// Ticks at which fetches over one link must start at the latest, the queue of the next step included.
void as_late_as_is_safe(const Times& times, const Places& rows, const Column& until, const std::vector<double>& needed,
                        Column& begin) {
  std::vector<double> offset(rows.size()), base(rows.size()), start(rows.size());
  Places order(rows.size());
  for (std::size_t at = 0; at < rows.size(); ++at) {
    double due = times.of(until[rows[at]]);
    base[at] = times.base(due), offset[at] = due - base[at], order[at] = at;
  }
  order = sorted(std::move(order), [&](std::size_t at) { return offset[at]; });
  std::ranges::reverse(order);
  double free_from = std::numeric_limits<double>::infinity();
  for (double ahead : {times.step_ns(), 0.0}) {
    for (std::size_t at : order) {
      free_from = std::min(offset[at] + ahead, free_from) - needed[rows[at]];
      start[at] = free_from;
    }
  }
  for (std::size_t at = 0; at < rows.size(); ++at) {
    begin[rows[at]] = std::max(times.at_or_before(std::max(start[at] + base[at], -times.step_ns())), times.first());
  }
}

// Ticks at which evictions over one link start and before which they are done. Of those that are ready, the link takes the one
// whose room is wanted first; the step before leaves its queue.
void as_soon_as_can_be(const Times& times, const Places& rows, const Chosen& chosen, Column& out, Column& done) {
  std::size_t count = rows.size();
  std::vector<double> offset(count), urgency(count), base(count), start(count), end(count);
  Places order(count);
  for (std::size_t at = 0; at < count; ++at) {
    double since = times.of(chosen.ready[rows[at]]);
    base[at] = times.base(since), offset[at] = since - base[at], order[at] = at;
    urgency[at] = times.of(chosen.after[rows[at]] + 1) - base[at];
  }
  order = sorted(std::move(order), [&](std::size_t at) { return offset[at]; });
  using Waiting = std::tuple<double, double, std::size_t>;
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting;
  double now = -std::numeric_limits<double>::infinity();
  for (double behind : {-times.step_ns(), 0.0}) {
    for (std::size_t place = 0; place < count; ++place) {
      std::size_t at = order[place];
      waiting.emplace(urgency[at] + behind, behind, at);
      bool is_last = place + 1 == count;
      double following = is_last ? behind + times.step_ns() : offset[order[place + 1]] + behind;
      now = std::max(now, offset[at] + behind);
      while (!waiting.empty() && (now < following || (behind == 0.0 && is_last))) {
        std::size_t job = std::get<2>(waiting.top());
        waiting.pop();
        start[job] = now;
        now += chosen.out_ns[rows[job]];
        end[job] = now;
      }
    }
  }
  for (std::size_t at = 0; at < count; ++at) {
    std::size_t row = rows[at];
    out[row] = std::max(times.at_or_before(start[at] + base[at]), chosen.ready[row]);
    done[row] = std::max(times.at_or_after(std::min(end[at] + base[at], kEnd * times.step_ns())), out[row]);
  }
}

void check(const Chosen& c, const Column& free, const Clock& clock) {
  std::size_t count = c.after.size();
  for (std::size_t size : {c.until.size(), c.ready.size(), c.paged.size(), c.tier.size(), c.pays.size(), c.returns.size(),
                           c.in_ns.size(), c.out_ns.size()}) {
    if (size != count) throw std::invalid_argument("columns of intervals differ in length");
  }
  bool is_step = clock.n_ticks > 0 && free.size() == static_cast<std::size_t>(clock.n_ticks) && clock.step_ns > 0;
  if (!is_step || clock.reached.size() != 5 * free.size()) throw std::invalid_argument("a clock of another step");
  for (std::size_t at = 0; at < count; ++at) {
    bool in_order = 0 <= c.ready[at] && c.ready[at] <= c.after[at] + 1 && c.after[at] < c.until[at];
    if (!in_order || c.until[at] >= 4 * clock.n_ticks) throw std::invalid_argument("an interval is out of range");
  }
}

// Writes as late as the room that is still free allows.
void put_off(const Times& times, Headroom& headroom, const Chosen& chosen, const Places& by_gone, Moves& moves) {
  Column later = moves.gone, latest = moves.out;
  for (std::size_t at : by_gone) {
    later[at] = headroom.latest(moves.gone[at], moves.back[at], chosen.paged[at]);
    headroom.take(moves.gone[at], later[at], chosen.paged[at]);
  }
  Places rows = by_gone;
  std::ranges::sort(rows);
  as_late_as_is_safe(times, rows, later, chosen.out_ns, latest);
  for (std::size_t at = 0; at < latest.size(); ++at) {
    latest[at] = std::min(std::max(latest[at], moves.out[at]), later[at]);
    moves.done[at] = std::max(later[at], latest[at]);
  }
  moves.out = std::move(latest);
  moves.gone = std::move(later);
}

}  // namespace

Moves time_moves(const Chosen& chosen, const Column& free, const Clock& clock, const Pace& pace) {
  check(chosen, free, clock);
  Times times(clock);
  Headroom headroom(free);
  std::size_t count = chosen.after.size();
  Moves moves{Column(count), Column(count), Column(count), chosen.until};
  for (std::size_t at = 0; at < count; ++at) moves.out[at] = moves.done[at] = moves.gone[at] = chosen.after[at] + 1;
  Column tiers = chosen.tier;
  std::ranges::sort(tiers);
  tiers.erase(std::ranges::unique(tiers).begin(), tiers.end());
  for (std::int64_t tier : tiers) {
    auto fetched = [&](std::size_t at) { return chosen.tier[at] == tier && chosen.returns[at] != 0; };
    auto written = [&](std::size_t at) { return chosen.tier[at] == tier && chosen.pays[at] != 0; };
    as_late_as_is_safe(times, places_of(count, fetched), chosen.until, chosen.in_ns, moves.back);
    as_soon_as_can_be(times, places_of(count, written), chosen, moves.out, moves.done);
  }
  auto returns = [&](std::size_t at) { return chosen.returns[at] != 0; };
  auto pays = [&](std::size_t at) { return chosen.pays[at] != 0; };
  std::int64_t n_ticks = clock.n_ticks;
  Places by_deadline = sorted(places_of(count, returns), [&](std::size_t at) { return chosen.until[at] % n_ticks; });
  for (std::size_t at : by_deadline) {
    std::int64_t until = chosen.until[at], low = std::min(std::max(moves.back[at], chosen.after[at] + 1), until);
    moves.back[at] = headroom.earliest(low, until, chosen.paged[at]);
    headroom.take(moves.back[at], until, chosen.paged[at]);
  }
  Places by_last_use = sorted(places_of(count, pays), [&](std::size_t at) { return chosen.after[at] % n_ticks; });
  for (std::size_t at : by_last_use) {
    std::int64_t low = chosen.after[at] + 1, high = std::max(low, std::min(moves.done[at], moves.back[at]));
    moves.gone[at] = headroom.latest(low, high, chosen.paged[at]);
    headroom.take(low, moves.gone[at], chosen.paged[at]);
    moves.done[at] = std::min(moves.done[at], moves.gone[at]);
    moves.out[at] = std::min(moves.out[at], moves.done[at]);
  }
  if (pace.lead_ns > 0) {
    Column wanted(count);
    for (std::size_t at = 0; at < count; ++at) wanted[at] = times.at_or_before(times.of(moves.back[at]) - pace.lead_ns);
    for (std::size_t at : by_deadline) {
      std::int64_t low = std::max(wanted[at], moves.gone[at]), high = moves.back[at];
      if (low >= high) continue;
      moves.back[at] = headroom.earliest(low, high, chosen.paged[at]);
      headroom.take(moves.back[at], high, chosen.paged[at]);
    }
  }
  if (pace.lazy) {
    put_off(times, headroom, chosen, sorted(places_of(count, pays), [&](std::size_t at) { return moves.gone[at] % n_ticks; }),
            moves);
  }
  return moves;
}

}  // namespace ebbtide::search
