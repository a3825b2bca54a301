#include "budget.hpp"

#include <unistd.h>

#include <algorithm>

namespace ebbtide {

namespace {
constexpr std::int64_t kMeasureEvery = 1'000'000;  // ns
constexpr auto kLookEvery = std::chrono::milliseconds(10);
constexpr std::uint64_t kTouchedPerNs = 3;  // bytes: new pages, of which the kernel zeroes each
constexpr std::uint64_t kTolerates = 50;  // of the bound, this part more
}  // namespace

void Budget::set_limits(std::uint64_t arena_bytes, std::uint64_t process_bytes) {
  arena_limit_ = arena_bytes;
  limit_ = arena_bytes;
  process_limit_ = process_bytes;
  if (bounds_process() && !data_files_.has_looked()) look_at_data_files(data_bytes(true));
  measure();
}

// Pages of files can leave. What has been granted beyond the budget may not have been touched yet, but is about to be.
bool Budget::machine_has(std::uint64_t more) {
  if (machine_bytes_ == 0) return true;
  std::uint64_t anonymous = anonymous_bytes(getpid());
  if (over() == 0) beside_ = anonymous - std::min(anonymous, reserved());
  return std::max(anonymous, beside_ + reserved()) + more <= machine_bytes_;
}

std::uint64_t Budget::process_bytes() {
  auto [resident, shared] = process_memory();
  shared_ = shared;
  data_ = data_files_.bytes(shared);
  elsewhere_peak_ = std::max(elsewhere_peak_, elsewhere());
  std::uint64_t bytes = resident - std::min<std::uint64_t>(resident, elsewhere());
  process_peak_ = std::max(process_peak_, bytes);
  return bytes;
}

bool Budget::measure() {
  measured_ns_ = now_ns();
  bool grew = unmanaged_.look(process_bytes(), reserved());
  if (process_limit_ == 0) return grew;
  std::uint64_t taken = unmanaged_.bytes() + margin() + set_aside_;
  std::uint64_t limit = process_limit_ > taken + kHugePage ? process_limit_ - taken : kHugePage;
  limit_ = arena_limit_ != 0 ? std::min(limit, arena_limit_) : limit;
  return grew;
}

std::chrono::nanoseconds Budget::look_every() const {
  if (!bounds_process()) return kLookEvery;
  std::chrono::nanoseconds until_used_up((margin() + process_limit_ / kTolerates) / kTouchedPerNs);
  return std::min(until_used_up / 2, std::chrono::nanoseconds(kLookEvery));
}

void Budget::measure_if_due() {
  if (process_limit_ != 0 && now_ns() - measured_ns_ > kMeasureEvery) measure();
}

void Budget::begin_step() {
  step_live_peak_ = live();
  unmanaged_.begin_step(process_bytes(), reserved());
  measure();
}

std::uint64_t Budget::process_peak() const {
  std::uint64_t peak = process_peak_bytes();
  return peak - std::min(peak, elsewhere_peak_);
}

void Budget::end_step() { unmanaged_.end_step(process_peak(), reserved()); }

void Budget::forget_step() {
  unmanaged_.forget_step();
  measure();
}

void Budget::set_aside(std::uint64_t bytes, int process) {
  aside_bytes_ = set_aside_ = bytes;
  aside_process_ = process;
  measure();
}

// What a process of ours outgrows of its reserve, the arena gives up too.
void Budget::measure_aside() {
  set_aside_ = aside_process_ == 0 ? aside_bytes_ : std::max(aside_bytes_, anonymous_bytes(aside_process_));
}

bool Budget::end_aside() {
  if (aside_process_ == 0 || !kill_child(aside_process_)) return false;
  aside_process_ = 0;
  aside_bytes_ = set_aside_ = 0;
  measure();
  return true;
}

void Budget::read(Counters& c) const {
  std::int64_t now = now_ns();
  c.live = live();
  c.live_peak = live_.peak();
  c.step_live_peak = step_live_peak_;
  c.resident = resident();
  c.resident_peak = resident_.peak();
  c.resident_byte_ns = resident_.byte_ns(now);
  c.reserved = reserved();
  c.reserved_peak = reserved_.peak();
  c.reserved_byte_ns = reserved_.byte_ns(now);
  c.arena_limit = limit();
  c.unmanaged = unmanaged_.bytes();
  c.process_peak = process_peak_;
  c.elsewhere = elsewhere();
  c.elsewhere_peak = std::max(elsewhere_peak_, elsewhere());
  c.measured_ns = now - peaks_reset_ns_;
}

void Budget::reset_peaks() {
  for (Level* level : {&reserved_, &resident_, &live_}) level->reset();
  process_peak_ = 0;
  elsewhere_peak_ = elsewhere();
  peaks_reset_ns_ = now_ns();
}

}  // namespace ebbtide
