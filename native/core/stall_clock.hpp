// Time during which at least one thread stood still. Overlapping waits count once: summed over threads they would
// exceed the wall and mislead every reader. Used under the arena's mutex.
#pragma once

#include <array>
#include <cstdint>

#include "system.hpp"
#include "tape.hpp"
#include "types.hpp"

namespace ebbtide {

class StallClock {
 public:
  explicit StallClock(Tape& tape) : tape_(tape) {}

  const std::array<std::int64_t, kStalls>& by_cause() const { return ns_; }
  std::int64_t total() const {  // since the process began
    std::int64_t sum = waiting_ > 0 ? now_ns() - since_ : 0;
    for (std::int64_t ns : ns_) sum += ns;
    return sum;
  }
  void begin_step() { storage_ = kNever; }  // numbers are another recording's from here on

 private:
  friend class StallScope;
  Tape& tape_;
  std::array<std::int64_t, kStalls> ns_{};
  unsigned waiting_ = 0;
  std::int64_t since_ = 0;
  Stall cause_ = Stall::Room;
  std::uint32_t storage_ = kNever;  // in the recording
};

class StallScope {
 public:
  explicit StallScope(StallClock& clock) : clock_(clock) {}
  ~StallScope() {
    if (!begun_ || --clock_.waiting_ > 0) return;
    std::int64_t now = now_ns();
    clock_.ns_[static_cast<std::size_t>(clock_.cause_)] += now - clock_.since_;
    clock_.tape_.stalled(clock_.storage_, clock_.cause_, clock_.since_, now);
  }
  StallScope(const StallScope&) = delete;
  StallScope& operator=(const StallScope&) = delete;

  // For a storage, by its number in the recording; kNever: capacity for a new one.
  void begin(Stall cause, std::uint32_t storage = kNever) {
    if (begun_) return;
    begun_ = true;
    if (clock_.waiting_++ > 0) return;
    clock_.since_ = now_ns();
    clock_.cause_ = cause;
    clock_.storage_ = storage;
  }

 private:
  StallClock& clock_;
  bool begun_ = false;
};

}  // namespace ebbtide
