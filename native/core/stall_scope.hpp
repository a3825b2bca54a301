// Time during which at least one thread stood still. Overlapping waits count once: summed over threads they would
// exceed the wall and mislead every reader. Used under the arena's mutex.
#pragma once

#include "arena.hpp"

namespace ebbtide {

class Arena::StallScope {
 public:
  StallScope(StallClock& clock, Counters& counters) : clock_(clock), counters_(counters) {}
  ~StallScope() {
    if (!begun_ || --clock_.waiting > 0) return;
    counters_.stall_ns[static_cast<std::size_t>(clock_.cause)] += now_ns() - clock_.since;
  }
  StallScope(const StallScope&) = delete;
  StallScope& operator=(const StallScope&) = delete;

  void begin(Stall cause) {
    if (begun_) return;
    begun_ = true;
    if (clock_.waiting++ > 0) return;
    clock_.since = now_ns();
    clock_.cause = cause;
  }

 private:
  StallClock& clock_;
  Counters& counters_;
  bool begun_ = false;
};

}  // namespace ebbtide
