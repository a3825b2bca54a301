// The watcher of this process's operators: the arena, an accelerator's memory, or else the recorder that moves nothing.
#pragma once

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "../core/operators.hpp"
#include "../core/replay.hpp"
#include "../core/tape.hpp"

namespace ebbtide {

struct Counters;

// No storage is smaller that is in pieces, or was since this process began.
inline std::atomic<std::uint64_t> least_in_pieces = ~std::uint64_t{0};

// Has storages of twice this size be in pieces from now on; 0: none is.
inline void begin_pieces(std::uint64_t least_piece) {
  if (least_piece > 0) least_in_pieces = std::min(least_in_pieces.load(), 2 * least_piece);
}

// True if this thread's next allocation is empty()'s: whoever asked for it fills it later.
inline thread_local bool next_is_untouched = false;

class Watch {
 public:
  virtual ~Watch() = default;

  virtual bool on() const = 0;  // false in a forked child, and where there is nothing to see
  virtual const void* find(c10::StorageImpl& storage) = 0;  // its address, or null for one that is not watched

  virtual void enter(const char* name, std::span<const Operand> operands, Work work, Pass pass) = 0;
  virtual void exit() = 0;
  virtual std::uint64_t note_need(const char* name, std::span<const Operand> operands) = 0;  // their bytes
  virtual void prefetch(std::span<const Operand> operands) = 0;

  virtual Counters begin_step(bool record) = 0;  // the arena's counters of that moment; without one all are 0
  virtual Counters end_step(bool completed) = 0;
  virtual void classify(const void* address, Kind kind) = 0;
  virtual Tape& tape() = 0;
};

// One whose steps follow schedules.
class ScheduledWatch : public Watch {
 public:
  virtual Schedules& schedules() = 0;
  virtual Counters counters() = 0;
  virtual void reset_peaks() = 0;
};

// Null before there is one. An arena that starts takes over.
Watch* the_watch();
ScheduledWatch& scheduled_watch();  // throws std::runtime_error where nothing follows schedules
void set_watch(Watch* watch);
void watch_arena();

}  // namespace ebbtide
