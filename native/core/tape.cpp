#include "tape.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "system.hpp"

namespace ebbtide {

Recording Tape::take() {
  Lock lock(mutex_);
  return std::exchange(recorded_, {});
}

std::uint32_t Tape::module_named(const char* name) {
  Lock lock(mutex_);
  return recording_ ? recording_->name(name) : 0;
}

std::uint32_t Tape::enter_module(std::uint32_t number) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread() || number >= recording_->names.size()) return 0;
  return std::exchange(recording_->module, number);
}

std::uint32_t Tape::module() {
  Lock lock(mutex_);
  return recording_ && on_step_thread() ? recording_->module : 0;
}

bool Tape::records_here() {
  Lock lock(mutex_);
  return recording_ && on_step_thread();
}

void Tape::at_line(const char* line) {
  Lock lock(mutex_);
  if (recording_ && on_step_thread()) recording_->line = recording_->name(line);
}

void Tape::describe(const char* arguments, Phase phase) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread()) return;
  RecordedTick& tick = recording_->ticks.back();
  tick.arguments = recording_->call(arguments);
  tick.phase = phase;
}

void Tape::begin(bool record, std::uint64_t reserved) {
  in_step_ = true;
  thread_ = thread_number();
  recorded_ = {};  // of a step that nobody asked about
  asked_ = record;
  ++recordings_;
  recording_.reset();
  begin_anew(reserved);
}

void Tape::begin_anew(std::uint64_t reserved) {
  clock_ = {};
  records_ = asked_;
  if (!asked_) return;
  Recording anew = recording_ ? recording_->modules() : Recording{};
  recording_.emplace(std::move(anew));
  recording_->spans.reserve(kMostSpans);
  recording_->ticks.push_back({.name = 0, .module = recording_->module, .begin_ns = 0, .stalled_ns = 0, .reserved = reserved});
  recording_->began_ns = now_ns();
}

void Tape::end(std::int64_t stalled_ns, std::int64_t now) {
  in_step_ = false;
  records_ = false;
  if (!recording_) return;
  recording_->time_ns = now - recording_->began_ns;
  recording_->stalled_ns = stalled_ns;
  recorded_ = std::move(*recording_);
  recording_.reset();
}

void Tape::set_times(std::span<const std::pair<std::int64_t, std::int64_t>> times) {
  if (!recording_) return;
  for (std::size_t i = 0; i < std::min(times.size(), recording_->ticks.size()); ++i) {
    std::tie(recording_->ticks[i].begin_ns, recording_->ticks[i].stalled_ns) = times[i];
  }
}

void Tape::tick(const char* name, std::uint32_t depth, std::int64_t stalled_ns, std::uint64_t reserved) {
  if (!on_step_thread()) return;
  clock_ = {clock_.tick + 1, 0};
  if (recording_ && recording_->is_full()) {  // no step to plan: an evaluation between two, say
    recording_.reset();
    records_ = false;
  }
  if (!recording_) return;
  recording_->ticks.push_back({.name = recording_->name(name),
                               .module = recording_->module,
                               .begin_ns = now_ns() - recording_->began_ns,
                               .stalled_ns = stalled_ns,
                               .reserved = reserved,
                               .depth = depth});
}

std::uint32_t Tape::was_there(std::uint64_t serial, std::uint64_t nbytes, bool scratch, std::uint64_t whole) {
  if (!recording_) return kNever;
  recording_->storages.push_back({.serial = serial, .nbytes = nbytes, .scratch = scratch, .whole = whole});
  return static_cast<std::uint32_t>(recording_->storages.size() - 1);
}

LineOf Tape::line() const { return {recording_ && on_step_thread() ? recording_->line : 0, recordings_}; }

std::uint32_t Tape::born(std::uint64_t serial, std::uint64_t nbytes, std::size_t depth, LineOf line, std::uint64_t whole) {
  if (!in_step_) return kNever;
  std::uint32_t allocation = on_step_thread() ? clock_.allocation++ : kNever;
  if (!recording_) return kNever;
  recording_->storages.push_back({.serial = serial,
                                  .nbytes = nbytes,
                                  .birth = clock_.tick,
                                  .allocation = allocation,
                                  .depth = static_cast<std::uint32_t>(depth),
                                  .module = recording_->module,
                                  .line = line.recording == recordings_ ? line.number : 0,
                                  .thread = thread_number(),
                                  .whole = whole});
  return static_cast<std::uint32_t>(recording_->storages.size() - 1);
}

void Tape::died(std::uint32_t storage, Kind kind, bool scratch, std::uint64_t serials) {
  if (!recording_ || storage == kNever) return;
  RecordedStorage& row = recording_->storages[storage];
  row.kind = kind;
  row.death = clock_.tick + 1;
  row.scratch = scratch;
  row.freed_after = serials;
}

void Tape::is(std::uint32_t storage, Kind kind) {
  if (recording_ && storage != kNever) recording_->storages[storage].kind = kind;
}

std::uint64_t Tape::serial_of(std::uint32_t storage) const {
  return recording_ && storage < recording_->storages.size() ? recording_->storages[storage].serial : 0;
}

void Tape::used(std::uint32_t storage, std::uint32_t first, Access access, std::uint64_t moved) {
  if (recording_ && storage != kNever) recording_->uses.push_back({storage, first, clock_.tick, access, moved});
}

void Tape::packs_to(std::uint32_t storage, std::int64_t packed_bytes) {
  if (recording_ && storage < recording_->storages.size()) recording_->storages[storage].packed_bytes = packed_bytes;
}

bool Tape::knows_packed(std::uint32_t storage) const {
  return !recording_ || storage >= recording_->storages.size() || recording_->storages[storage].packed_bytes != kUnknown;
}

void Tape::moved(const RecordedSpan& span) {
  if (recording_ && span.storage != kNever) recording_->add(span);
}

void Tape::stalled(std::uint32_t storage, Stall cause, std::int64_t since, std::int64_t now) {
  if (recording_) recording_->stalled(storage, clock_.tick, cause, since, now);
}

}  // namespace ebbtide
