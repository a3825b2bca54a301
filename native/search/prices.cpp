#include "prices.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace ebbtide::search {

namespace {

constexpr int kStarts = 8;            // powers of two around the flat price, each way, that searches start from
constexpr double kBetter = 1 + 1e-4;  // worth going on from
constexpr int kRounds = 200;          // at most
constexpr int kPatience = 12;         // rounds without a better value, until steps are halved
constexpr double kLeastHope = 1e-3;
constexpr double kMomentum = 0.5;

void check(const Covering& c) {
  check_windows(c.low, c.high, c.low.size(), c.deficit.size());
  for (std::size_t size : {c.paged.size(), c.cost.size(), c.group.size()}) {
    if (size != c.low.size()) throw std::invalid_argument("columns of intervals differ in length");
  }
  if (!c.anew.empty() && c.anew.size() != c.low.size()) throw std::invalid_argument("columns of intervals differ in length");
  for (std::int64_t group : c.group) {
    bool known = 0 <= group && group < static_cast<std::int64_t>(c.write_cost.size());
    if (!known) throw std::invalid_argument("an interval's group is out of range");
  }
}

// The problem without the ticks that lack nothing, whose price is 0, and without the intervals that reach none of the others.
class Lagrangian {
 public:
  explicit Lagrangian(const Covering& c)
      : write_cost_(c.write_cost), group_gain_(c.write_cost.size()), anew_gain_(c.write_cost.size()) {
    std::size_t n = c.deficit.size();
    std::vector<std::size_t> before(2 * n + 1);  // ticks that lack something, in two rounds
    for (std::size_t t = 0; t < n; ++t) {
      if (c.deficit[t] > 0) ticks_.push_back(t), deficit_.push_back(c.deficit[t]);
    }
    for (std::size_t t = 0; t < 2 * n; ++t) before[t + 1] = before[t] + (c.deficit[t % n] > 0);
    for (std::size_t i = 0; i < c.low.size(); ++i) {
      std::size_t low = before[static_cast<std::size_t>(c.low[i])], high = before[static_cast<std::size_t>(c.high[i])];
      double anew = c.anew.empty() ? std::numeric_limits<double>::infinity() : c.anew[i];
      if (high == low) continue;
      auto group = static_cast<std::uint32_t>(c.group[i]);
      rows_.push_back({static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(high), group, c.paged[i], c.cost[i], anew});
    }
    summed_.resize(2 * ticks_.size() + 1);
    change_.resize(2 * ticks_.size() + 1);
    gain_.resize(rows_.size());
    remakes_ = !c.anew.empty();
  }

  std::size_t size() const { return ticks_.size(); }

  // Its value at these prices, and its slope.
  double value(const std::vector<double>& price, std::vector<double>& slope) {
    sum_twice(price);
    std::ranges::transform(write_cost_, group_gain_.begin(), std::negate<>());
    std::ranges::fill(change_, 0.0);
    double gained = remakes_ ? choose_with_remakes() : choose();
    // Bytes are whole numbers, so their sums are exact in any order.
    std::size_t m = size();
    double held = std::accumulate(change_.begin(), change_.begin() + static_cast<std::ptrdiff_t>(m), 0.0);
    for (std::size_t t = 0; t < m; ++t) {
      held += change_[t] + change_[m + t];
      slope[t] = deficit_[t] - held;
    }
    return std::inner_product(deficit_.begin(), deficit_.end(), price.begin(), 0.0) - gained;
  }

  std::vector<double> of_all_ticks(const std::vector<double>& price, std::size_t n_ticks) const {
    std::vector<double> all(n_ticks);
    for (std::size_t i = 0; i < size(); ++i) all[ticks_[i]] = price[i];
    return all;
  }

 private:
  struct Row {
    std::uint32_t low, high, group;
    double paged, cost, anew;
  };

  // Sums prices over two rounds of the step.
  void sum_twice(const std::vector<double>& price) {
    std::size_t m = size();
    std::partial_sum(price.begin(), price.end(), summed_.begin() + 1);
    for (std::size_t t = 0; t < m; ++t) summed_[m + 1 + t] = summed_[m] + summed_[t + 1];
  }

  // Notes what the best choice changes at each tick, and returns what it saves.
  double choose() {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      gain_[i] = row.paged * (summed_[row.high] - summed_[row.low]) - row.cost;
      group_gain_[row.group] += std::max(gain_[i], 0.0);
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      double nbytes = gain_[i] > 0 && group_gain_[row.group] > 0 ? row.paged : 0.0;  // no branch: a coin would do as well
      change_[row.low] += nbytes;
      change_[row.high] -= nbytes;
    }
    double gained = 0.0;
    for (double gain : group_gain_) gained += std::max(gain, 0.0);
    return gained;
  }

  double choose_with_remakes() {
    std::ranges::fill(anew_gain_, 0.0);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      double saved = row.paged * (summed_[row.high] - summed_[row.low]);
      gain_[i] = saved - std::min(row.cost, row.anew);
      group_gain_[row.group] += std::max(gain_[i], 0.0);
      anew_gain_[row.group] += std::max(saved - row.anew, 0.0);
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      bool writes = group_gain_[row.group] > anew_gain_[row.group];
      if (!writes) gain_[i] += std::min(row.cost, row.anew) - row.anew;  // its group writes nothing, so it is made anew or stays
      double nbytes = gain_[i] > 0 && (!writes || group_gain_[row.group] > 0) ? row.paged : 0.0;
      change_[row.low] += nbytes;
      change_[row.high] -= nbytes;
    }
    double gained = 0.0;
    for (std::size_t at = 0; at < group_gain_.size(); ++at) gained += std::max(group_gain_[at], anew_gain_[at]);
    return gained;
  }

  const std::vector<double>& write_cost_;
  bool remakes_;
  std::vector<std::size_t> ticks_;
  std::vector<double> deficit_;
  std::vector<Row> rows_;
  std::vector<double> summed_, change_, gain_;
  std::vector<double> group_gain_, anew_gain_;  // of each group if it writes, and if it does not
};

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// A price for all ticks alike, at which all that can be chosen would about pay.
double flat_price(const Covering& c) {
  double room = 0.0;
  for (std::size_t i = 0; i < c.low.size(); ++i) room += c.paged[i] * static_cast<double>(c.high[i] - c.low[i] + 1);
  return (sum(c.cost) + sum(c.write_cost)) / room;
}

}  // namespace

void check_windows(const std::vector<std::int64_t>& low, const std::vector<std::int64_t>& high, std::size_t rows,
                   std::size_t n_ticks) {
  if (low.size() != rows || high.size() != rows) throw std::invalid_argument("columns of intervals differ in length");
  auto ticks = static_cast<std::int64_t>(n_ticks);
  for (std::size_t i = 0; i < rows; ++i) {
    bool in_range = 0 <= low[i] && low[i] < std::max<std::int64_t>(ticks, 1) && low[i] <= high[i] && high[i] <= 2 * ticks;
    if (!in_range) throw std::invalid_argument("an interval is out of range");
  }
}

Prices find_prices(const Covering& covering) {
  check(covering);
  Lagrangian lagrangian(covering);
  std::size_t m = lagrangian.size(), n_ticks = covering.deficit.size();
  double costs = sum(covering.cost) + sum(covering.write_cost);
  if (m == 0 || covering.low.empty() || costs <= 0) return {std::vector<double>(n_ticks), 0.0};

  double flat = flat_price(covering), best = 0.0;
  std::vector<double> slope(m), price(m), best_price(m, flat);
  for (int power = -kStarts; power <= kStarts; ++power) {
    std::ranges::fill(price, std::ldexp(flat, power));
    if (double value = lagrangian.value(price, slope); value > best) best = value, best_price = price;
  }
  price = best_price;
  std::vector<double> smooth(m);
  double hope = 0.5;
  int stale = 0;
  for (int round = 0; round < kRounds; ++round) {
    double value = lagrangian.value(price, slope);
    if (value > best * kBetter) {
      best = value;
      best_price = price;
      stale = 0;
    } else if (++stale >= kPatience) {
      hope /= 2;
      stale = 0;
      price = best_price;
      std::ranges::fill(smooth, 0.0);
      if (hope < kLeastHope) break;
      continue;
    }
    double norm = 0.0;
    for (std::size_t t = 0; t < m; ++t) {
      if (price[t] <= 0 && slope[t] < 0) slope[t] = 0.0;
      smooth[t] = slope[t] + kMomentum * smooth[t];
      norm += smooth[t] * smooth[t];
    }
    if (norm <= 0) break;
    double step = (std::max(best, 1.0) * (1 + hope) - value) / norm;
    for (std::size_t t = 0; t < m; ++t) price[t] = std::max(price[t] + step * smooth[t], 0.0);
  }
  return {lagrangian.of_all_ticks(best_price, n_ticks), best};
}

}  // namespace ebbtide::search
