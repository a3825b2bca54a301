#include "free_runs.hpp"

#include <algorithm>
#include <bit>

#include "types.hpp"

namespace ebbtide {

FreeRuns::FreeRuns(std::uint32_t slots) : entries_(slots * sizeof(Entry), kSmallPage, PROT_READ | PROT_WRITE), slots_(slots) {
  head_.fill(kNone);
}

std::uint32_t FreeRuns::bin_of(std::uint32_t count) {
  if (count < kExact) return count;
  auto doubling = static_cast<std::uint32_t>(std::bit_width(count)) - 7;  // 0 for 64..127
  std::uint32_t quarter = (count >> (doubling + 4)) % kPerDoubling;
  return kExact + doubling * kPerDoubling + quarter;
}

std::uint32_t FreeRuns::next_bin(std::uint32_t from) const {
  for (std::uint32_t word = from / 64; word < occupied_.size(); ++word) {
    std::uint64_t bits = occupied_[word];
    if (word == from / 64) bits &= ~std::uint64_t{0} << (from % 64);
    if (bits != 0) return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
  }
  return kBins;
}

// The first slot of a bin's shortest run of at least so many, or kNone.
Slot FreeRuns::shortest_of(std::uint32_t bin, std::uint32_t at_least) const {
  Slot best = kNone;
  for (Slot run = head_[bin]; run != kNone; run = entry(run).next) {
    std::uint32_t count = entry(run).count;
    if (count < at_least || (best != kNone && count >= entry(best).count)) continue;
    best = run;
    if (bin < kExact) break;  // they are all as long
  }
  return best;
}

Slot FreeRuns::longest() const {
  Slot best = kNone;
  for (std::uint32_t bin = kBins; bin-- > 0 && best == kNone;) {
    for (Slot run = head_[bin]; run != kNone; run = entry(run).next) {
      if (best == kNone || entry(run).count > entry(best).count) best = run;
    }
  }
  return best;
}

bool FreeRuns::fits(std::uint32_t count) const {
  std::uint32_t bin = bin_of(count);
  return shortest_of(bin, count) != kNone || next_bin(bin + 1) != kBins;
}

Slot FreeRuns::best(std::uint32_t count) const {
  std::uint32_t bin = bin_of(count);
  Slot best = shortest_of(bin, count);
  if (best == kNone && (bin = next_bin(bin + 1)) != kBins) best = shortest_of(bin, count);
  return best != kNone ? best : longest();
}

Run FreeRuns::take(std::uint32_t most) { return count_ == 0 ? Run{} : cut(best(most), most); }

Run FreeRuns::take_shortest(std::uint32_t most) {
  std::uint32_t bin = next_bin(0);
  return bin == kBins ? Run{} : cut(shortest_of(bin, 0), most);
}

// The first `most` slots of a free run, or all of it.
Run FreeRuns::cut(Slot first, std::uint32_t most) {
  Run whole{first, entry(first).count};
  unlink(whole);
  Run taken{first, std::min(most, whole.count)};
  if (taken.count < whole.count) link({first + taken.count, whole.count - taken.count});
  return taken;
}

void FreeRuns::give(Run run) {
  Slot after = run.first + run.count;
  if (after < slots_ && entry(after).count != 0) {
    Run right{after, entry(after).count};
    unlink(right);
    run.count += right.count;
  }
  if (run.first > 0 && entry(run.first - 1).count != 0) {
    std::uint32_t count = entry(run.first - 1).count;
    Run left{run.first - count, count};
    unlink(left);
    run = {left.first, left.count + run.count};
  }
  link(run);
}

void FreeRuns::link(Run run) {
  std::uint32_t bin = bin_of(run.count);
  entry(run.first) = {run.count, head_[bin], kNone};
  entry(run.first + run.count - 1).count = run.count;
  if (head_[bin] != kNone) entry(head_[bin]).previous = run.first;
  head_[bin] = run.first;
  occupied_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  count_ += run.count;
}

void FreeRuns::unlink(Run run) {
  std::uint32_t bin = bin_of(run.count);
  Entry found = entry(run.first);
  (found.previous == kNone ? head_[bin] : entry(found.previous).next) = found.next;
  if (found.next != kNone) entry(found.next).previous = found.previous;
  if (head_[bin] == kNone) occupied_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
  entry(run.first).count = 0;
  entry(run.first + run.count - 1).count = 0;
  count_ -= run.count;
}

}  // namespace ebbtide
