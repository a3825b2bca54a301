// The budget and who sees to it, and what can be set.
#include "arena.hpp"

namespace ebbtide {

namespace {
constexpr std::chrono::nanoseconds kLookAgain = std::chrono::milliseconds(1);
}  // namespace

void Arena::govern() {
  block_sent_signals();
  Lock lock(mutex_);
  bool grew = false;
  while (!stopping_) {
    governor_wakes_.wait_for(lock, grew ? kLookAgain : budget_.look_every());
    if (budget_.bounds_process()) {
      if (budget_.data_files_are_due()) {
        lock.unlock();
        DataBytes now = data_bytes(false);
        lock.lock();
        budget_.look_at_data_files(now);
      }
      budget_.measure_aside();
      grew = budget_.measure();
    }
    if (budget_.over() > 0 && !mover_.hushed()) room_.trim();
    if (checks_pages_) look_at_clean_pages(lock);
    if (options_.on_governor_wake == nullptr) continue;
    lock.unlock();
    options_.on_governor_wake();
    lock.lock();
  }
}

void Arena::set_limits(std::uint64_t arena_bytes, std::uint64_t process_bytes) {
  Lock lock(mutex_);
  budget_.set_limits(arena_bytes, process_bytes);
  room_.trim();
  mover_.changed();
}

void Arena::set_machine(std::uint64_t bytes) {
  Lock lock(mutex_);
  budget_.set_machine(bytes);
}

void Arena::set_aside(std::uint64_t bytes, int process) {
  Lock lock(mutex_);
  budget_.set_aside(bytes, process);
  room_.trim();
  mover_.changed();
}

void Arena::remeasure_unmanaged() {
  Lock lock(mutex_);
  budget_.forget_step();
}

void Arena::look_at_data_files() {
  DataBytes now = data_bytes(false);
  Lock lock(mutex_);
  budget_.look_at_data_files(now);
}

void Arena::set_policy(const Policy& policy) {
  Lock lock(mutex_);
  victims_.set_policy(policy);
}

void Arena::set_chaos(double rate, std::uint64_t seed) {
  Lock lock(mutex_);
  chaos_rate_ = rate;
  chaos_state_ = seed * 2 + 1;
}

void Arena::set_watchdog(std::int64_t ns) {
  Lock lock(mutex_);
  room_.set_watchdog(ns);
}

}  // namespace ebbtide
