// Which slots of a row are free, as runs: best fit, neighbours merged on return.
// Not thread-safe. Allocates nothing after construction (used by the fault handler).
#pragma once

#include <array>
#include <cstdint>

#include "system.hpp"

namespace ebbtide {

using Slot = std::uint32_t;

// Slots [first, first + count).
struct Run {
  Slot first = 0;
  std::uint32_t count = 0;
};

class FreeRuns {
 public:
  explicit FreeRuns(std::uint32_t slots);  // none is free yet

  std::uint32_t count() const { return count_; }           // free slots
  bool fits(std::uint32_t count) const;                    // in one run
  Slot best(std::uint32_t count) const;                    // where take() begins, if there are any
  Run take(std::uint32_t most);                            // from the run that fits best, else all of the longest
  Run take_shortest(std::uint32_t most);                   // from the shortest run
  // Takes every run that `wanted` says so of, whole, and hands it to `taken`, which may not touch these runs.
  template <typename Wanted, typename Taken>
  void take_all(Wanted wanted, Taken taken) {
    for (std::uint32_t bin = 0; bin < kBins; ++bin) {
      for (Slot at = head_[bin]; at != kNone;) {
        Run run{at, entry(at).count};
        at = entry(at).next;
        if (!wanted(run)) continue;
        unlink(run);
        taken(run);
      }
    }
  }
  void give(Run run);  // callers MUST give back only what is not free

 private:
  // Of the first slot of a free run; of its last only the count. A count of zero: this slot is no end of a free run.
  struct Entry {
    std::uint32_t count;
    Slot next;      // links of the run's bin
    Slot previous;
  };
  static constexpr std::uint32_t kExact = 64;    // runs shorter than this have a bin for each length,
  static constexpr std::uint32_t kPerDoubling = 4;  // longer ones so many for each doubling
  static constexpr std::uint32_t kBins = kExact + (32 - 6) * kPerDoubling;
  static constexpr Slot kNone = ~Slot{0};

  Entry& entry(Slot slot) const { return reinterpret_cast<Entry*>(entries_.begin())[slot]; }
  static std::uint32_t bin_of(std::uint32_t count);
  std::uint32_t next_bin(std::uint32_t from) const;  // the first from there on that holds a run, or kBins
  Slot shortest_of(std::uint32_t bin, std::uint32_t at_least) const;
  Slot longest() const;
  Run cut(Slot first, std::uint32_t most);
  void link(Run run);
  void unlink(Run run);

  Reservation entries_;
  std::array<Slot, kBins> head_;
  std::array<std::uint64_t, (kBins + 63) / 64> occupied_{};  // a bit for each bin
  std::uint32_t slots_;
  std::uint32_t count_ = 0;
};

}  // namespace ebbtide
