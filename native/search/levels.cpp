#include "levels.hpp"

#include <algorithm>
#include <limits>

namespace ebbtide::search {

namespace {

constexpr std::int64_t kNone = -1;
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

std::size_t place(Ticks tick) { return static_cast<std::size_t>(tick); }

}  // namespace

Levels::Levels(const std::vector<std::int64_t>& of_tick) : n_ticks_(of_tick.size()), nodes_(4 * of_tick.size()) {
  if (n_ticks_ > 0) build(1, 0, n_ticks_, of_tick);
}

void Levels::build(std::size_t node, std::size_t first, std::size_t last, const std::vector<std::int64_t>& of_tick) {
  if (last - first == 1) {
    nodes_[node] = {of_tick[first], of_tick[first], 0};
    return;
  }
  std::size_t middle = (first + last) / 2;
  build(2 * node, first, middle, of_tick);
  build(2 * node + 1, middle, last, of_tick);
  nodes_[node] = {std::min(nodes_[2 * node].least, nodes_[2 * node + 1].least),
                  std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most), 0};
}

void Levels::add(Ticks low, Ticks high, std::int64_t nbytes) {
  if (low >= high) return;
  add(1, 0, n_ticks_, place(low), std::min(place(high), n_ticks_), nbytes);
  if (place(high) > n_ticks_) add(1, 0, n_ticks_, 0, place(high) - n_ticks_, nbytes);
}

void Levels::add(std::size_t node, std::size_t first, std::size_t last, std::size_t low, std::size_t high, std::int64_t nbytes) {
  if (high <= first || last <= low) return;
  Node& here = nodes_[node];
  if (low <= first && last <= high) {
    here.least += nbytes, here.most += nbytes, here.added += nbytes;
    return;
  }
  std::size_t middle = (first + last) / 2;
  add(2 * node, first, middle, low, high, nbytes);
  add(2 * node + 1, middle, last, low, high, nbytes);
  here.least = std::min(nodes_[2 * node].least, nodes_[2 * node + 1].least) + here.added;
  here.most = std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most) + here.added;
}

std::int64_t Levels::most(Ticks low, Ticks high) const {
  if (low >= high) return 0;
  std::int64_t found = most(1, 0, n_ticks_, place(low), std::min(place(high), n_ticks_));
  return place(high) > n_ticks_ ? std::max(found, most(1, 0, n_ticks_, 0, place(high) - n_ticks_)) : found;
}

std::int64_t Levels::most(std::size_t node, std::size_t first, std::size_t last, std::size_t low, std::size_t high) const {
  if (high <= first || last <= low) return kLeast;
  const Node& here = nodes_[node];
  if (low <= first && last <= high) return here.most;
  std::size_t middle = (first + last) / 2;
  std::int64_t found = std::max(most(2 * node, first, middle, low, high), most(2 * node + 1, middle, last, low, high));
  return found == kLeast ? found : found + here.added;
}

Ticks Levels::first_below(Ticks low, Ticks high, std::int64_t nbytes) const {
  if (low >= high) return high;
  std::int64_t found = find(1, 0, n_ticks_, place(low), std::min(place(high), n_ticks_), nbytes, true);
  if (found != kNone || place(high) <= n_ticks_) return found == kNone ? high : found;
  found = find(1, 0, n_ticks_, 0, place(high) - n_ticks_, nbytes, true);
  return found == kNone ? high : found + static_cast<Ticks>(n_ticks_);
}

Ticks Levels::last_below(Ticks low, Ticks high, std::int64_t nbytes) const {
  if (low >= high) return low - 1;
  if (place(high) > n_ticks_) {
    std::int64_t found = find(1, 0, n_ticks_, 0, place(high) - n_ticks_, nbytes, false);
    if (found != kNone) return found + static_cast<Ticks>(n_ticks_);
  }
  std::int64_t found = find(1, 0, n_ticks_, place(low), std::min(place(high), n_ticks_), nbytes, false);
  return found == kNone ? low - 1 : found;
}

std::int64_t Levels::find(std::size_t node, std::size_t first, std::size_t last, std::size_t low, std::size_t high,
                          std::int64_t nbytes, bool earliest) const {
  const Node& here = nodes_[node];
  if (high <= first || last <= low || here.least >= nbytes) return kNone;
  if (last - first == 1) return static_cast<std::int64_t>(first);
  std::size_t middle = (first + last) / 2;
  auto in_half = [&](bool early) {
    return early ? find(2 * node, first, middle, low, high, nbytes - here.added, earliest)
                 : find(2 * node + 1, middle, last, low, high, nbytes - here.added, earliest);
  };
  std::int64_t found = in_half(earliest);
  return found != kNone ? found : in_half(!earliest);
}

}  // namespace ebbtide::search
