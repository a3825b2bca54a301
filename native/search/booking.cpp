#include "booking.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace ebbtide::search {

namespace {

struct Booked {
  std::vector<double>* link;
  std::size_t bin;
  double spent;
};

// Takes time of a link within `bins` of `place`, on or back, and notes it; false if it is too little.
bool book(std::vector<double>& link, double place, int way, double needed_ns, double bins, std::vector<Booked>& booked) {
  auto n = static_cast<std::int64_t>(link.size());
  std::int64_t at = static_cast<std::int64_t>(place) - (way > 0 ? 0 : 1);
  std::int64_t most = std::min(static_cast<std::int64_t>(std::min(bins, static_cast<double>(n))) + 1, n);
  for (std::int64_t step = 0; step < most && needed_ns > 0; ++step) {
    auto bin = static_cast<std::size_t>(((at + way * step) % n + n) % n);
    if (link[bin] <= 0) continue;
    double spent = std::min(link[bin], needed_ns);
    link[bin] -= spent;
    needed_ns -= spent;
    booked.push_back({&link, bin, spent});
  }
  return needed_ns <= 0;
}

void check(const Copies& c, const std::vector<std::int64_t>& order, const std::vector<std::uint8_t>& others) {
  std::size_t count = c.leaves.size(), groups = c.first.size();
  bool alike = c.needed.size() == count && c.out_ns.size() == count && c.in_ns.size() == count;
  if (!alike || c.last.size() != groups || others.size() != groups || c.n_bins <= 0 || !(c.bin_ns > 0)) {
    throw std::invalid_argument("columns of copies differ in length");
  }
  for (std::size_t at = 0; at < groups; ++at) {
    bool in_range = 0 <= c.first[at] && c.first[at] <= c.last[at] && c.last[at] <= static_cast<std::int64_t>(count);
    if (!in_range) throw std::invalid_argument("a group has copies that are not there");
  }
  bool known = std::ranges::all_of(order, [&](std::int64_t at) { return 0 <= at && at < static_cast<std::int64_t>(groups); });
  if (!known) throw std::invalid_argument("no such group");
}

}  // namespace

std::vector<std::uint8_t> carried(const Copies& copies, const std::vector<std::int64_t>& order,
                                  const std::vector<std::uint8_t>& others, double write_bins, double fetch_bins) {
  check(copies, order, others);
  auto n_bins = static_cast<std::size_t>(copies.n_bins);
  std::vector<double> out(n_bins, copies.bin_ns), back(n_bins, copies.bin_ns);
  std::vector<Booked> booked;
  auto all_of = [&](std::size_t group, const auto& goes) {
    for (auto job = static_cast<std::size_t>(copies.first[group]); job < static_cast<std::size_t>(copies.last[group]); ++job) {
      if (!goes(job)) return false;
    }
    return true;
  };
  for (std::size_t group = 0; group < others.size(); ++group) {
    if (others[group] == 0) continue;
    all_of(group, [&](std::size_t job) {
      book(out, copies.leaves[job], 1, copies.out_ns[job], static_cast<double>(n_bins), booked);
      book(back, copies.needed[job], -1, copies.in_ns[job], static_cast<double>(n_bins), booked);
      return true;
    });
  }
  std::vector<std::uint8_t> taken(copies.first.size());
  for (std::int64_t at : order) {
    auto group = static_cast<std::size_t>(at);
    booked.clear();
    bool goes = all_of(group, [&](std::size_t job) {
      double out_ns = copies.out_ns[job], in_ns = copies.in_ns[job];
      return book(out, copies.leaves[job], 1, out_ns, write_bins + out_ns / copies.bin_ns, booked) &&
             book(back, copies.needed[job], -1, in_ns, fetch_bins + in_ns / copies.bin_ns, booked);
    });
    taken[group] = static_cast<std::uint8_t>(goes);
    if (goes) continue;
    for (const Booked& entry : booked) (*entry.link)[entry.bin] += entry.spent;
  }
  return taken;
}

}  // namespace ebbtide::search
