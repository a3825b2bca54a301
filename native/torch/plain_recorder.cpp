#include "plain_recorder.hpp"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "../core/system.hpp"
#include "allocator.hpp"

namespace ebbtide {

namespace {

constexpr std::uint8_t kPriority = 254;  // an arena stands in front
const c10::Device kCpu(c10::DeviceType::CPU);

PlainRecorder* recorder = nullptr;

// A storage that an operator of this thread uses.
struct Used {
  const void* address;
  std::uint64_t serial;
  std::uint32_t recorded;
  std::uint32_t first;
  Access access;
  bool born_here;
  std::uint64_t moved;
};

struct Running {
  std::uint64_t serial;
  std::size_t first_use;
};

struct Operators {
  std::vector<Running> running;
  std::vector<Used> uses;
};

thread_local Operators this_thread;

void release_watched(void* address) {
  if (address != nullptr) recorder->release(address);
}

class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator& previous) : previous_(previous) {}

  c10::DataPtr allocate(std::size_t nbytes) override {
    void* address = recorder->allocate(nbytes);
    return {address, address, &release_watched, kCpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_watched; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { previous_.copy_data(to, from, nbytes); }

 private:
  c10::Allocator& previous_;
};

}  // namespace

bool PlainRecorder::on_step_thread() const { return step_thread_ == &this_thread; }

void* PlainRecorder::allocate(std::size_t nbytes) {
  void* address = previous_.raw_allocate(nbytes);
  if (address == nullptr || nbytes == 0 || in_child_ || !watches_) return address;
  Lock lock(mutex_);
  bool clocked = in_step_ && on_step_thread();
  Live live{.nbytes = nbytes,
            .kind = in_step_ ? Kind::Activation : Kind::Other,
            .born_in_step = in_step_,
            .born_in_operator = !this_thread.running.empty()};
  begin_to_watch(address, live, clock_.tick, clocked ? clock_.allocation : kNever);
  if (clocked) ++clock_.allocation;
  return address;
}

void PlainRecorder::release(void* address) {
  if (!in_child_) {
    Lock lock(mutex_);
    if (auto entry = live_.find(address); entry != live_.end()) ended(entry);
  }
  previous_.raw_deleter()(address);  // last: from here on the address may be another thread's
}

void PlainRecorder::begin_to_watch(const void* address, Live live, std::uint32_t birth, std::uint32_t allocation) {
  if (auto stale = live_.find(address); stale != live_.end()) ended(stale);  // whose end was not seen
  live.serial = ++serials_;
  if (recording_) {
    live.recorded = static_cast<std::uint32_t>(recording_->storages.size());
    recording_->storages.push_back({.serial = live.serial,
                                    .nbytes = live.nbytes,
                                    .birth = birth,
                                    .allocation = allocation,
                                    .module = birth == kNever ? 0 : recording_->module,
                                    .thread = thread_number()});
    if (live.born_in_operator) {
      this_thread.uses.push_back({address, live.serial, live.recorded, clock_.tick, Access::Write, true, live.nbytes});
    }
  }
  live_.emplace(address, live);
}

void PlainRecorder::ended(std::unordered_map<const void*, Live>::iterator entry) {
  const Live& live = entry->second;
  if (recording_ && live.recorded != kNever) {
    RecordedStorage& storage = recording_->storages[live.recorded];
    storage.kind = live.kind;
    storage.death = clock_.tick + 1;
    storage.scratch = live.born_in_operator;
    storage.freed_after = serials_;
  }
  live_.erase(entry);
}

void PlainRecorder::watch(bool watches) {
  Lock lock(mutex_);
  watches_ = watches;
  live_.clear();
}

const void* PlainRecorder::find(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (!watches_ || data.get() == nullptr || storage.nbytes() == 0 || data.device().type() != c10::DeviceType::CPU) return nullptr;
  Lock lock(mutex_);
  auto entry = live_.find(data.get());
  if (entry != live_.end() && (entry->second.end_is_seen || entry->second.nbytes == storage.nbytes())) return data.get();
  Live live{.nbytes = storage.nbytes()};
  // The context of the default allocator's pointers is the address, so its end comes here from now on.
  live.end_is_seen =
      data.get_deleter() == &release_watched ||
      (data.get_context() == data.get() && data.compare_exchange_deleter(previous_.raw_deleter(), &release_watched));
  begin_to_watch(data.get(), live, kNever, kNever);
  return data.get();
}

void PlainRecorder::enter(const char* name, std::span<const Operand> operands, Work) {
  Lock lock(mutex_);
  if (recording_ && on_step_thread()) {
    clock_ = {clock_.tick + 1, 0};
    if (recording_->ticks.size() == kMostTicks) {
      recording_.reset();
      records_ = false;
    } else {
      recording_->ticks.push_back({recording_->name(name), recording_->module, now_ns() - recording_->began_ns, 0});
    }
  }
  Operators& mine = this_thread;
  mine.running.push_back({++operators_, mine.uses.size()});
  for (const Operand& operand : operands) {
    auto entry = live_.find(operand.address);
    if (entry == live_.end() || entry->second.used_by == operators_) continue;
    entry->second.used_by = operators_;
    mine.uses.push_back(
        {operand.address, entry->second.serial, entry->second.recorded, clock_.tick, operand.access, false, operand.moved});
  }
}

void PlainRecorder::exit() {
  if (in_child_) return;
  Lock lock(mutex_);
  Operators& mine = this_thread;
  if (mine.running.empty()) return;
  Running ends = mine.running.back();
  mine.running.pop_back();
  std::size_t kept = ends.first_use;
  for (std::size_t i = ends.first_use; i < mine.uses.size(); ++i) {
    Used use = mine.uses[i];
    auto entry = use.born_here ? live_.find(use.address) : live_.end();
    bool lives = entry != live_.end() && entry->second.serial == use.serial;
    if (lives && !mine.running.empty()) {  // what an inner operator made is the outer one's to fill
      mine.uses[kept++] = use;
      continue;
    }
    if (lives) entry->second.born_in_operator = false;
    if (recording_ && use.recorded < recording_->storages.size() && recording_->storages[use.recorded].serial == use.serial) {
      recording_->uses.push_back({use.recorded, use.first, clock_.tick, use.access, use.moved});
    }
  }
  mine.uses.resize(kept);
}

// As the arena counts it, so that a fused optimizer is cut into the same groups with an arena and without.
std::uint64_t PlainRecorder::note_need(const char*, std::span<const Operand> operands) {
  Lock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const Operand& operand : operands) {
    auto entry = live_.find(operand.address);
    if (entry != live_.end() && entry->second.nbytes >= kManagedBytes) bytes += shape_of(entry->second.nbytes).bytes();
  }
  return bytes;
}

// Callers MUST be outside of all operators: a recording has no beginnings from before it.
Counters PlainRecorder::begin_step(bool record) {
  Lock lock(mutex_);
  in_step_ = true;
  step_thread_ = &this_thread;
  this_thread = {};
  clock_ = {};
  recording_.reset();
  recorded_ = {};
  for (auto& [address, live] : live_) live.recorded = kNever;
  if (record) {
    recording_.emplace();
    recording_->ticks.push_back({0, 0, 0, 0});
    for (auto& [address, live] : live_) {
      live.recorded = static_cast<std::uint32_t>(recording_->storages.size());
      recording_->storages.push_back({.serial = live.serial, .nbytes = live.nbytes});
    }
    recording_->began_ns = now_ns();
  }
  records_ = record;
  return {};
}

Counters PlainRecorder::end_step(bool) {
  Lock lock(mutex_);
  if (recording_) recording_->time_ns = now_ns() - recording_->began_ns;
  in_step_ = false;
  step_thread_ = nullptr;
  for (auto& [address, live] : live_) {
    if (!live.classified && live.born_in_step) live.kind = Kind::Other;
    live.born_in_step = false;
    if (recording_ && live.recorded != kNever) recording_->storages[live.recorded].kind = live.kind;
    live.recorded = kNever;
  }
  if (recording_) recorded_ = std::move(*recording_);
  recording_.reset();
  records_ = false;
  return {};
}

Recording PlainRecorder::take_recording() {
  Lock lock(mutex_);
  return std::exchange(recorded_, {});
}

void PlainRecorder::describe(const char* arguments, Phase phase) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread()) return;
  RecordedTick& tick = recording_->ticks.back();
  tick.arguments = recording_->name(arguments);
  tick.depth = static_cast<std::uint32_t>(this_thread.running.size()) - 1;
  tick.phase = phase;
}

std::uint32_t PlainRecorder::enter_module(const char* name) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread()) return 0;
  return std::exchange(recording_->module, recording_->name(name));
}

std::uint32_t PlainRecorder::enter_module(std::uint32_t number) {
  Lock lock(mutex_);
  if (!recording_ || !on_step_thread() || number >= recording_->names.size()) return 0;
  return std::exchange(recording_->module, number);
}

std::uint32_t PlainRecorder::module() {
  Lock lock(mutex_);
  return recording_ && on_step_thread() ? recording_->module : 0;
}

void PlainRecorder::classify(const void* address, Kind kind) {
  Lock lock(mutex_);
  if (auto entry = live_.find(address); entry != live_.end()) {
    entry->second.kind = kind;
    entry->second.classified = true;
  }
}

PlainRecorder& install_plain_recorder() {
  if (the_arena() != nullptr)
    throw std::runtime_error(
        "a session with a budget has run in this process, and only such a session can record it from then on");
  if (recorder != nullptr) return *recorder;
  c10::Allocator* previous = c10::GetCPUAllocator();
  if (previous->raw_deleter() == nullptr) {
    throw std::runtime_error(
        "another CPU allocator is installed that Ebbtide cannot stand in front of; start to record before it");
  }
  recorder = new PlainRecorder(*previous);
  pthread_atfork(nullptr, nullptr, [] { recorder->child(); });
  c10::SetCPUAllocator(new WatchedAllocator(*previous), kPriority);
  return *recorder;
}

c10::DeleterFnPtr watched_deleter() { return recorder != nullptr ? &release_watched : nullptr; }

}  // namespace ebbtide
