#include "windows.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace ebbtide::search {

namespace {

// Events by the places of their ticks among the cuts: 0 before all of them, their number after the last.
struct Placed {
  struct Event {
    std::size_t second;
    std::int64_t nbytes;
    bool on_cut;  // the second tick is one
  };
  std::vector<std::vector<Event>> by_first;

  Placed(const Events& events, const std::vector<std::int64_t>& cuts) : by_first(cuts.size() + 1) {
    if (events.first.size() != events.second.size() || events.first.size() != events.nbytes.size()) {
      throw std::invalid_argument("columns of events differ in length");
    }
    for (std::size_t i = 0; i < events.first.size(); ++i) {
      std::size_t second = place(events.second[i], cuts);
      bool on_cut = second > 0 && cuts[second - 1] == events.second[i];
      by_first[place(events.first[i], cuts)].push_back({second, events.nbytes[i], on_cut});
    }
  }

  static std::size_t place(std::int64_t tick, const std::vector<std::int64_t>& cuts) {
    return static_cast<std::size_t>(std::ranges::upper_bound(cuts, tick) - cuts.begin());
  }
};

}  // namespace

double longest_windows(const Step& step, const std::vector<Wall>& walls) {
  const auto& cuts = step.cuts;
  std::size_t n = cuts.size();
  if (n == 0 || step.begins_ns.size() != n || step.fresh.size() != n || !std::ranges::is_sorted(cuts)) {
    throw std::invalid_argument("the cuts, their times and what they need differ in number, or are in no order");
  }
  Placed uses(step.uses, cuts), rests(step.rests, cuts);
  // Sums that follow the window's beginning, by the place of the second tick. Bytes are whole numbers, so they are exact.
  std::vector<std::int64_t> come(n + 1), come_on_cut(n + 1), gone(n + 1), born(n + 1);
  auto add_uses = [&](std::size_t first) {  // what was used before the window, by when it is used next
    for (const auto& event : uses.by_first[first]) {
      come[event.second] += event.nbytes;
      if (event.on_cut) come_on_cut[event.second] += event.nbytes;
    }
  };
  for (std::size_t first = 1; first <= n; ++first) {  // what begins within the window or after, by when it ends
    for (const auto& event : rests.by_first[first]) {
      gone[event.second] += event.nbytes;
      born[first] += event.nbytes;
    }
  }
  std::vector<double> best(n);
  for (std::size_t at = 0; at + 1 < n; ++at) {
    add_uses(at);
    if (at > 0) {
      for (const auto& event : rests.by_first[at]) gone[event.second] -= event.nbytes;
    }
    std::int64_t into = 0, out = 0;
    for (std::size_t end = at + 1; end < n; ++end) {
      into += come[end];
      out += born[end] - gone[end];
      double compute = step.begins_ns[end] - step.begins_ns[at], length = compute;
      for (const Wall& wall : walls) {
        double limit = static_cast<double>(wall.nbytes);
        double over_in = std::max(static_cast<double>(into) + step.fresh[at] - limit, 0.0);
        double over_out = std::max(static_cast<double>(out + come_on_cut[end + 1]) + step.fresh[end] - limit, 0.0);
        length = std::max(length, compute + over_in * wall.lost_in + over_out * wall.lost_out);
        for (auto [in_ns, out_ns] : wall.ns_per_byte) length = std::max(length, over_in * in_ns + over_out * out_ns);
      }
      best[end] = std::max(best[end], best[at] + length);
    }
  }
  return best.back();
}

}  // namespace ebbtide::search
