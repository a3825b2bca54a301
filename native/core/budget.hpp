// How much fast memory the arena may have, and how much it has: reserved bytes are those that were claimed.
// Guarded by the arena's mutex, but for limit().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "counters.hpp"
#include "data_files.hpp"
#include "system.hpp"
#include "types.hpp"
#include "unmanaged.hpp"

namespace ebbtide {

// A number of bytes over time.
class Level {
 public:
  void add(std::int64_t bytes) {
    std::int64_t now = now_ns();
    byte_ns_ += static_cast<double>(now_) * static_cast<double>(now - since_ns_);
    since_ns_ = now;
    now_ += static_cast<std::uint64_t>(bytes);
    peak_ = now_ > peak_ ? now_ : peak_;
  }
  void reset() {
    peak_ = now_;
    byte_ns_ = 0.0;
    since_ns_ = now_ns();
  }
  std::uint64_t now() const { return now_; }
  std::uint64_t peak() const { return peak_; }
  double byte_ns(std::int64_t now) const { return byte_ns_ + static_cast<double>(now_) * static_cast<double>(now - since_ns_); }

 private:
  std::uint64_t now_ = 0, peak_ = 0;
  double byte_ns_ = 0.0;
  std::int64_t since_ns_ = now_ns();
};

class Budget {
 public:
  // The lower of the arena's own and what the process's bound leaves it; 0: none.
  std::uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  bool bounded() const { return limit() != 0; }
  bool bounds_process() const { return process_limit_ != 0; }
  void set_limits(std::uint64_t arena_bytes, std::uint64_t process_bytes);
  // More than that the process cannot have, whatever its limits; 0: not known.
  void set_machine(std::uint64_t bytes) { machine_bytes_ = bytes; }
  bool machine_has(std::uint64_t more);
  std::uint64_t machine_bytes() const { return machine_bytes_; }

  std::uint64_t reserved() const { return reserved_.now(); }
  std::uint64_t resident() const { return resident_.now(); }
  std::uint64_t live() const { return live_.now(); }
  std::uint64_t over() const { return bounded() && reserved() > limit() ? reserved() - limit() : 0; }
  std::uint64_t free() const { return limit() > reserved() ? limit() - reserved() : 0; }

  void account(std::int64_t bytes) {  // reserved bytes change
    reserved_.add(bytes);
    unmanaged_.reserved(reserved());
  }
  void account_resident(std::int64_t bytes) { resident_.add(bytes); }  // so do those of them under live storages
  void account_live(std::int64_t bytes) {                              // requested bytes of all storages
    live_.add(bytes);
    step_live_peak_ = live() > step_live_peak_ ? live() : step_live_peak_;
  }
  // Pages of the arena that are a slower tier's: resident memory of the process, and not fast [Note: in place].
  std::uint64_t in_place() const { return in_place_; }
  void account_in_place(std::int64_t bytes) { in_place_ += static_cast<std::uint64_t>(bytes); }

  // The script's own files may have been mapped [data_files.hpp].
  bool data_files_are_due() const { return data_files_.is_due(shared_); }
  void look_at_data_files(DataBytes now) { data_files_.look(process_memory().shared, now); }
  // What the process holds outside the arena leaves the rest of its bound to the arena. Whether it has just grown.
  bool measure();
  // How often to look where nothing else does: before a thread that only touches new pages has used up half of what the
  // process may have beyond the bound and what is kept free below it.
  std::chrono::nanoseconds look_every() const;
  void measure_if_due();
  void begin_step();
  void end_step();
  void forget_step();  // something passing outside the arena is over

  // The process's bound keeps so much for a child of ours (0: none yet), or what that holds where it is more.
  void set_aside(std::uint64_t bytes, int process);
  void measure_aside();
  bool end_aside();  // kills it, before the budget is exceeded. Whether there was one

  void read(Counters& c) const;
  void reset_peaks();

 private:
  std::uint64_t process_bytes();  // in fast memory
  std::uint64_t elsewhere() const { return in_place_ + data_; }  // resident memory of the process that is not
  std::uint64_t margin() const { return process_limit_ / 128 + (std::uint64_t{4} << 20); }
  std::uint64_t process_peak() const;

  std::atomic<std::uint64_t> limit_ = 0;
  std::uint64_t arena_limit_ = 0;
  std::uint64_t process_limit_ = 0;
  std::uint64_t machine_bytes_ = 0;
  std::uint64_t beside_ = 0;  // anonymous memory beside the arena, when the budget was exceeded
  Unmanaged unmanaged_;
  DataFiles data_files_;
  std::uint64_t shared_ = 0, data_ = 0;  // as looked at
  std::uint64_t elsewhere_peak_ = 0;
  std::int64_t measured_ns_ = 0;
  std::uint64_t process_peak_ = 0;  // as looked at
  std::uint64_t set_aside_ = 0;  // for another process: what was asked for, or what it holds
  std::uint64_t aside_bytes_ = 0;
  int aside_process_ = 0;
  Level reserved_, resident_, live_;
  std::uint64_t step_live_peak_ = 0;  // since a step began
  std::uint64_t in_place_ = 0;
  std::int64_t peaks_reset_ns_ = now_ns();
};

}  // namespace ebbtide
