// Time during which at least one thread stood still. Overlapping waits count once: summed over threads they would
// exceed the wall and mislead every reader. Used under the arena's mutex.
#pragma once

#include "arena.hpp"

namespace ebbtide {

class Arena::StallScope {
 public:
  explicit StallScope(Arena& arena) : arena_(arena), clock_(arena.stall_clock_) {}
  ~StallScope() {
    if (!begun_ || --clock_.waiting > 0) return;
    std::int64_t now = now_ns();
    arena_.counters_.stall_ns[static_cast<std::size_t>(clock_.cause)] += now - clock_.since;
    arena_.tape_.stalled(clock_.storage, clock_.cause, clock_.since, now);
  }
  StallScope(const StallScope&) = delete;
  StallScope& operator=(const StallScope&) = delete;

  // For a storage, by its number in the recording; kNever: capacity for a new one.
  void begin(Stall cause, std::uint32_t storage = kNever) {
    if (begun_) return;
    begun_ = true;
    if (clock_.waiting++ > 0) return;
    clock_.since = now_ns();
    clock_.cause = cause;
    clock_.storage = storage;
  }

 private:
  Arena& arena_;
  StallClock& clock_;
  bool begun_ = false;
};

}  // namespace ebbtide
