#include "choice.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <utility>

#include "levels.hpp"

namespace ebbtide::search {

namespace {

constexpr int kRaises = 60;
constexpr std::array kRaiseSteps{1.01, 1.1};
constexpr double kEndless = std::numeric_limits<double>::infinity();

using Rows = std::vector<std::size_t>;
using Taken = std::vector<std::uint8_t>;
using Bytes = std::vector<std::int64_t>;

// Windows of one demand, on ticks as whole numbers.
struct Windows {
  const std::vector<std::int64_t>&low, &high;
  Bytes deficit;

  template <typename Demanded>
  explicit Windows(const Demanded& demand) : low(demand.low), high(demand.high), deficit(demand.deficit.size()) {
    std::ranges::transform(demand.deficit, deficit.begin(), [](double lacks) { return static_cast<std::int64_t>(lacks); });
  }

  std::size_t n_ticks() const { return deficit.size(); }

  // Returns the bytes that each tick lacks beside the intervals taken.
  Bytes left(const Taken& taken, const Bytes& paged) const {
    std::size_t n = n_ticks();
    Bytes change(2 * n + 1);
    for (std::size_t row = 0; row < taken.size(); ++row) {
      if (taken[row] == 0) continue;
      change[static_cast<std::size_t>(low[row])] += paged[row];
      change[static_cast<std::size_t>(high[row])] -= paged[row];
    }
    std::partial_sum(change.begin(), change.end(), change.begin());
    Bytes lacks(n);
    for (std::size_t tick = 0; tick < n; ++tick) lacks[tick] = deficit[tick] - change[tick] - change[n + tick];
    return lacks;
  }
};

// Ticks that lack something, in two rounds of the step, and what they lack.
struct Lacking {
  Bytes lacks;                     // of the first round
  std::vector<std::size_t> before;  // of each tick, how many of them come before it

  explicit Lacking(const Bytes& left) : before(2 * left.size() + 1) {
    std::size_t n = left.size();
    for (std::size_t tick = 0; tick < 2 * n; ++tick) {
      bool short_of = left[tick % n] > 0;
      if (short_of && tick < n) lacks.push_back(left[tick]);
      before[tick + 1] = before[tick] + static_cast<std::size_t>(short_of);
    }
  }
};

// A choice under construction.
class Cover {
 public:
  Cover(const Windows& must, const Windows& wish, const Covering& costs, const Bytes& paged, Taken taken)
      : must_(must), wish_(wish), costs_(costs), paged_(paged), taken_(std::move(taken)), in_group_(costs.write_cost.size()) {
    for (std::size_t row = 0; row < taken_.size(); ++row) in_group_[group(row)] += taken_[row];
  }

  // Adds the interval with the least cost per byte covered until the demand is met; false if it cannot be.
  bool repair(const Windows& demand) {
    Bytes left = demand.left(taken_, paged_);
    Lacking lacking(left);
    if (lacking.lacks.empty()) return true;
    using Entry = std::pair<double, std::size_t>;
    std::vector<Entry> entries;
    for (std::size_t row = 0; row < taken_.size(); ++row) {
      if (taken_[row] == 0 && reach(demand, lacking, row) > 0) entries.emplace_back(ratio(demand, lacking, row), row);
    }
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap(std::greater<>(), std::move(entries));
    std::size_t short_of = lacking.lacks.size();
    while (!heap.empty() && short_of > 0) {
      auto [was, row] = heap.top();
      heap.pop();
      double now = ratio(demand, lacking, row);
      if (now == kEndless) continue;
      if (!heap.empty() && now > heap.top().first && now > was) {
        heap.emplace(now, row);
        continue;
      }
      taken_[row] = 1;
      ++in_group_[group(row)];
      each(demand, lacking, row, [&](std::int64_t& lacks) {
        bool lacked = lacks > 0;
        lacks -= paged_[row];
        short_of -= static_cast<std::size_t>(lacked && lacks <= 0);
      });
    }
    return short_of == 0;
  }

  // Gives up what no demand needs, the dearest first.
  void take_back() {
    Levels must(must_.left(taken_, paged_)), wish(wish_.left(taken_, paged_));
    Rows rows;
    for (std::size_t row = 0; row < taken_.size(); ++row) {
      if (taken_[row] != 0) rows.push_back(row);
    }
    std::ranges::stable_sort(rows, std::greater<>(),
                             [&](std::size_t row) { return costs_.cost[row] + costs_.write_cost[group(row)]; });
    for (std::size_t row : rows) {
      bool spare = spares(must, must_, row) && spares(wish, wish_, row);
      if (!spare) continue;
      taken_[row] = 0;
      --in_group_[group(row)];
      must.add(must_.low[row], must_.high[row], paged_[row]);
      wish.add(wish_.low[row], wish_.high[row], paged_[row]);
    }
  }

  double total() const {
    double sum = 0;
    for (std::size_t row = 0; row < taken_.size(); ++row) sum += taken_[row] != 0 ? costs_.cost[row] : 0.0;
    for (std::size_t at = 0; at < in_group_.size(); ++at) sum += in_group_[at] > 0 ? costs_.write_cost[at] : 0.0;
    return sum;
  }

  const Taken& taken() const { return taken_; }

 private:
  std::size_t group(std::size_t row) const { return static_cast<std::size_t>(costs_.group[row]); }

  bool spares(const Levels& left, const Windows& demand, std::size_t row) const {
    return demand.low[row] >= demand.high[row] || left.most(demand.low[row], demand.high[row]) <= -paged_[row];
  }

  std::size_t reach(const Windows& demand, const Lacking& lacking, std::size_t row) const {
    return lacking.before[static_cast<std::size_t>(demand.high[row])] - lacking.before[static_cast<std::size_t>(demand.low[row])];
  }

  // Visits ticks that lack something when the repair begins: those to which the interval gives room.
  template <typename Visit>
  void each(const Windows& demand, Lacking& lacking, std::size_t row, const Visit& visit) const {
    std::size_t m = lacking.lacks.size();
    std::size_t low = lacking.before[static_cast<std::size_t>(demand.low[row])];
    std::size_t high = lacking.before[static_cast<std::size_t>(demand.high[row])];
    for (std::size_t at = low; at < std::min(high, m); ++at) visit(lacking.lacks[at]);
    for (std::size_t at = std::max(low, m); at < high; ++at) visit(lacking.lacks[at - m]);
  }

  double ratio(const Windows& demand, Lacking& lacking, std::size_t row) const {
    std::int64_t covered = 0, paged = paged_[row];
    each(demand, lacking, row, [&](std::int64_t lacks) { covered += std::clamp<std::int64_t>(lacks, 0, paged); });
    double price = costs_.cost[row] + (in_group_[group(row)] > 0 ? 0.0 : costs_.write_cost[group(row)]);
    return covered > 0 ? (price + 1.0) / static_cast<double>(covered) : kEndless;
  }

  const Windows &must_, &wish_;
  const Covering& costs_;
  const Bytes& paged_;
  Taken taken_;
  std::vector<std::int64_t> in_group_;
};

// The intervals that save more than they cost at these prices.
Taken worth_it(const Covering& c, const std::vector<double>& price) {
  std::size_t n = price.size();
  std::vector<double> summed(2 * n + 1), gain(c.low.size()), group_gain(c.write_cost.size());
  for (std::size_t tick = 0; tick < 2 * n; ++tick) summed[tick + 1] = summed[tick] + price[tick < n ? tick : tick - n];
  for (std::size_t row = 0; row < gain.size(); ++row) {
    double saves = summed[static_cast<std::size_t>(c.high[row])] - summed[static_cast<std::size_t>(c.low[row])];
    gain[row] = c.paged[row] * saves - c.cost[row];
    group_gain[static_cast<std::size_t>(c.group[row])] += std::max(gain[row], 0.0);
  }
  Taken taken(gain.size());
  for (std::size_t row = 0; row < gain.size(); ++row) {
    auto group = static_cast<std::size_t>(c.group[row]);
    taken[row] = static_cast<std::uint8_t>(gain[row] > 0 && group_gain[group] - c.write_cost[group] > 0);
  }
  return taken;
}

// Chooses what is worth it. It first raises the prices of uncovered ticks, a little at a time, until few are left.
Taken raised(const Covering& c, const Windows& wish, const Bytes& paged, std::vector<double> price, double step) {
  double lacks = 0, costs = std::accumulate(c.cost.begin(), c.cost.end(), 0.0);
  costs = std::accumulate(c.write_cost.begin(), c.write_cost.end(), costs);
  for (double deficit : c.deficit) lacks += std::max(deficit, 0.0);
  double least = costs / std::max(lacks, 1.0) * 1e-2;
  Taken taken;
  for (int round = 0; round < kRaises; ++round) {
    taken = worth_it(c, price);
    Bytes left = wish.left(taken, paged);
    bool any = false;
    for (std::size_t tick = 0; tick < price.size(); ++tick) {
      if (left[tick] <= 0) continue;
      any = true;
      price[tick] = std::max(price[tick] * step, least);
    }
    if (!any) break;
  }
  return taken;
}

}  // namespace

std::optional<std::vector<std::uint8_t>> choose(const Demand& must, const Covering& wish) {
  std::vector<double> price = find_prices(wish).of_tick;  // which looks at the columns of `wish`
  check_windows(must.low, must.high, wish.low.size(), must.deficit.size());
  if (must.deficit.size() != wish.deficit.size()) throw std::invalid_argument("demands of different steps");
  Windows must_windows(must), wish_windows(wish);
  Bytes paged(wish.paged.size());
  std::ranges::transform(wish.paged, paged.begin(), [](double nbytes) { return static_cast<std::int64_t>(nbytes); });
  std::optional<Taken> best;
  double least = kEndless;
  for (double step : kRaiseSteps) {
    Cover cover(must_windows, wish_windows, wish, paged, raised(wish, wish_windows, paged, price, step));
    cover.repair(wish_windows);
    if (!cover.repair(must_windows)) continue;
    cover.take_back();
    if (double total = cover.total(); !best || total < least) best = cover.taken(), least = total;
  }
  return best;
}

}  // namespace ebbtide::search
