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
    bool just_before;  // the first tick is the one before a cut: that of its place
    bool on_cut;       // the second tick is one
  };
  std::vector<std::vector<Event>> by_first;

  Placed(const Events& events, const std::vector<std::int64_t>& cuts) : by_first(cuts.size() + 1) {
    if (events.first.size() != events.second.size() || events.first.size() != events.nbytes.size()) {
      throw std::invalid_argument("columns of events differ in length");
    }
    for (std::size_t i = 0; i < events.first.size(); ++i) {
      std::size_t first = place(events.first[i], cuts), second = place(events.second[i], cuts);
      bool just_before = first < cuts.size() && events.first[i] + 1 == cuts[first];
      bool on_cut = second > 0 && cuts[second - 1] == events.second[i];
      by_first[first].push_back({second, events.nbytes[i], just_before, on_cut});
    }
  }

  static std::size_t place(std::int64_t tick, const std::vector<std::int64_t>& cuts) {
    return static_cast<std::size_t>(std::ranges::upper_bound(cuts, tick) - cuts.begin());
  }
};

// What the operation at each cut holds of contents that are made within the window, by the window's end.
class OfTheWindow {
 public:
  OfTheWindow(const Events& events, const std::vector<std::int64_t>& cuts) : placed_(events, cuts), nbytes_(cuts.size()) {
    for (std::size_t first = 1; first < placed_.by_first.size(); ++first) add(first, 1);
  }
  void begins_at(std::size_t cut) {  // each cut in its turn
    if (cut > 0) add(cut, -1);
  }
  std::int64_t operator[](std::size_t end) const { return nbytes_[end]; }

 private:
  void add(std::size_t first, std::int64_t sign) {
    for (const auto& event : placed_.by_first[first]) {
      if (event.on_cut) nbytes_[event.second - 1] += sign * event.nbytes;
    }
  }
  Placed placed_;
  std::vector<std::int64_t> nbytes_;
};

// Bytes of a window that come in and go out, unless there is room for them.
struct Copies {
  std::int64_t in, out;
};

// The least time of a window with these, and with so much compute.
double least_ns(const Copies& copies, double compute, const std::vector<Wall>& walls) {
  double least = compute;
  for (const Wall& wall : walls) {
    auto in = static_cast<double>(std::max<std::int64_t>(copies.in - wall.nbytes, 0));
    auto out = static_cast<double>(std::max<std::int64_t>(copies.out - wall.nbytes, 0));
    least = std::max(least, compute + in * wall.lost_in + out * wall.lost_out);
    for (auto [in_ns, out_ns] : wall.ns_per_byte) least = std::max(least, in * in_ns + out * out_ns);
  }
  return least;
}

}  // namespace

double longest_windows(const Step& step, const std::vector<Wall>& walls) {
  const auto& cuts = step.cuts;
  std::size_t n = cuts.size();
  bool same = step.begins_ns.size() == n && step.fresh.size() == n && step.held.size() == n && step.held_before.size() == n;
  if (n == 0 || !same || !std::ranges::is_sorted(cuts)) {
    throw std::invalid_argument("the cuts, their times and what they need differ in number, or are in no order");
  }
  Placed uses(step.uses, cuts), rests(step.rests, cuts);
  OfTheWindow used(step.used, cuts), outlived(step.outlived, cuts);
  // Sums that follow the window's beginning, by the place of the second tick. Bytes are whole numbers, so they are exact.
  std::vector<std::int64_t> come(n + 1), gone(n + 1), born(n + 1);
  for (std::size_t first = 1; first <= n; ++first) {  // what begins within the window or after, by when it ends
    for (const auto& event : rests.by_first[first]) {
      gone[event.second] += event.nbytes;
      born[first] += event.nbytes;
    }
  }
  // The longest rows up to each cut: as its operation begins, and as the one before ends.
  std::vector<double> begun(n), ended(n);
  std::vector<std::int64_t> kept(n + 1);  // of what the operation before the window holds: by when it is used next
  for (std::size_t at = 0; at + 1 < n; ++at) {
    std::ranges::fill(kept, 0);
    for (const auto& event : uses.by_first[at]) {  // what was used before the window, by when it is used next
      come[event.second] += event.nbytes;
      if (event.just_before) kept[event.second] += event.nbytes;
    }
    if (at > 0) {
      for (const auto& event : rests.by_first[at]) gone[event.second] -= event.nbytes;
    }
    used.begins_at(at);
    outlived.begins_at(at);
    begun[at] = std::max(begun[at], ended[at]);
    std::int64_t into = 0, out = 0, idle = step.held_before[at];
    for (std::size_t end = at + 1; end < n; ++end) {
      into += come[end];
      out += born[end] - gone[end];
      idle -= kept[end];
      double compute = step.begins_ns[end] - step.begins_ns[at];
      std::int64_t out_begun = out + step.held[end] - used[end], out_ended = out + step.held_before[end] - outlived[end];
      begun[end] = std::max(begun[end], begun[at] + least_ns({into + step.fresh[at], out_begun}, compute, walls));
      ended[end] = std::max(ended[end], begun[at] + least_ns({into + step.fresh[at], out_ended}, compute, walls));
      if (at > 0 && idle > step.fresh[at]) {  // a row begins with an operation
        begun[end] = std::max(begun[end], ended[at] + least_ns({into + idle, out_begun}, compute, walls));
        ended[end] = std::max(ended[end], ended[at] + least_ns({into + idle, out_ended}, compute, walls));
      }
    }
  }
  return std::max(begun.back(), ended.back());
}

}  // namespace ebbtide::search
