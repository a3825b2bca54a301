// Writes a step down: its clock, and where a recording is asked for, its ticks, lives, uses and moves. The arena and the
// recorder of plain steps own one each.
//
// [Note: a tape's mutex]  A tape lies under its owner's mutex. What is asked of it from where operators are seen takes the
// mutex; the owner MUST hold it for all else.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "recording.hpp"
#include "types.hpp"

namespace ebbtide {

class Tape {
 public:
  explicit Tape(std::mutex& mutex) : mutex_(mutex) {}

  // --- from where operators are seen
  bool records() const { return records_.load(std::memory_order_relaxed); }
  Recording take();  // of the last step that was recorded; empty if there is none
  std::uint32_t module_named(const char* name);      // its number in the recording
  std::uint32_t enter_module(std::uint32_t number);  // on the step's thread; returns the number of the one before
  std::uint32_t module();                            // that runs on the step's thread
  // Whether the calling thread is the step's, and the step is recorded. What it gives birth to from now on was made at
  // this line of the user's program; "" is none.
  bool records_here();
  void at_line(const char* line);
  void describe(const char* arguments, Phase phase);  // the operator that the step's thread entered last

  // --- for its owner. Operators and allocations of the thread that begins a step make its clock; `stalled_ns` counts
  // from there on.
  void begin(bool record, std::uint64_t reserved = 0);
  void begin_anew(std::uint64_t reserved);  // what the step has done so far is no part of it; its modules go on
  void end(std::int64_t stalled_ns, std::int64_t now);
  bool in_step() const { return in_step_; }
  // The step goes on on the calling thread: autograd runs a device's backward pass on one of its own, while the step's waits.
  void go_on_here() { thread_ = thread_number(); }
  bool on_step_thread() const { return in_step_ && thread_ == thread_number() && !off_the_record; }
  bool recording() const { return recording_.has_value(); }
  const Clock& clock() const { return clock_; }
  // When the ticks of the recorded step began, and what of the time before were stalls: a device tells it later than they were
  // asked for. Fewer than there are: the rest stay as they were.
  void set_times(std::span<const std::pair<std::int64_t, std::int64_t>> times);
  // An operator begins, within `depth` others. On other threads than the step's: nothing.
  void tick(const char* name, std::uint32_t depth, std::int64_t stalled_ns, std::uint64_t reserved);

  // Storages by their numbers in the recording; kNever: they have none.
  std::uint32_t was_there(std::uint64_t serial, std::uint64_t nbytes, bool scratch = false,
                          std::uint64_t whole = 0);  // before the step
  // Within so many operators of the calling thread, at this line; a piece of this storage, if it is one.
  std::uint32_t born(std::uint64_t serial, std::uint64_t nbytes, std::size_t depth, LineOf line, std::uint64_t whole = 0);
  LineOf line() const;  // of what is made now
  void died(std::uint32_t storage, Kind kind, bool scratch, std::uint64_t serials);
  void is(std::uint32_t storage, Kind kind);
  std::uint64_t serial_of(std::uint32_t storage) const;  // 0: it is not in this recording
  // From tick `first` to the current one.
  void used(std::uint32_t storage, std::uint32_t first, Access access, std::uint64_t moved);
  // What its contents take in a tier that packs; kUnknown again when somebody writes to them.
  void packs_to(std::uint32_t storage, std::int64_t packed_bytes);
  bool knows_packed(std::uint32_t storage) const;
  // Times are absolute. These two allocate nothing.
  void moved(const RecordedSpan& span);
  void stalled(std::uint32_t storage, Stall cause, std::int64_t since, std::int64_t now);

 private:
  using Lock = std::lock_guard<std::mutex>;

  std::mutex& mutex_;
  bool in_step_ = false;
  std::uint32_t thread_ = 0;  // that began the step
  Clock clock_;
  std::optional<Recording> recording_;  // of this step
  Recording recorded_;
  std::uint32_t recordings_ = 0;
  bool asked_ = false;  // to record this step
  std::atomic<bool> records_ = false;
};

}  // namespace ebbtide
