#include "plain_recorder.hpp"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "../core/system.hpp"
#include "allocator.hpp"
#include "operator_rules.hpp"

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

void* PlainRecorder::allocate(std::size_t nbytes) {
  void* address = previous_.raw_allocate(nbytes);
  if (address == nullptr || nbytes == 0 || in_child_ || !watches_) return address;
  Lock lock(mutex_);
  Live live{.nbytes = nbytes,
            .kind = tape_.in_step() ? Kind::Activation : Kind::Other,
            .born_in_step = tape_.in_step(),
            .born_in_operator = !this_thread.running.empty()};
  begin_to_watch(address, live, true);
  return address;
}

void PlainRecorder::release(void* address) {
  if (!in_child_) {
    Lock lock(mutex_);
    if (auto entry = live_.find(address); entry != live_.end()) ended(entry);
  }
  previous_.raw_deleter()(address);  // last: from here on the address may be another thread's
}

void PlainRecorder::begin_to_watch(const void* address, Live live, bool is_born) {
  if (auto stale = live_.find(address); stale != live_.end()) ended(stale);  // whose end was not seen
  live.serial = ++serials_;
  live.recorded = is_born ? tape_.born(live.serial, live.nbytes) : tape_.was_there(live.serial, live.nbytes);
  if (live.recorded != kNever && live.born_in_operator) {
    this_thread.uses.push_back({address, live.serial, live.recorded, tape_.clock().tick, Access::Write, true, live.nbytes});
  }
  live_.emplace(address, live);
}

void PlainRecorder::ended(std::unordered_map<const void*, Live>::iterator entry) {
  const Live& live = entry->second;
  tape_.died(live.recorded, live.kind, live.born_in_operator, serials_);
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
  begin_to_watch(data.get(), live, false);
  return data.get();
}

void PlainRecorder::enter(const char* name, std::span<const Operand> operands, Work) {
  Lock lock(mutex_);
  Operators& mine = this_thread;
  tape_.tick(name, static_cast<std::uint32_t>(mine.running.size()), 0, 0);
  mine.running.push_back({++operators_, mine.uses.size()});
  for (const Operand& operand : operands) {
    auto entry = live_.find(operand.address);
    if (entry == live_.end() || entry->second.used_by == operators_) continue;
    entry->second.used_by = operators_;
    mine.uses.push_back({operand.address, entry->second.serial, entry->second.recorded, tape_.clock().tick, operand.access, false,
                         operand.moved});
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
    if (tape_.serial_of(use.recorded) == use.serial) tape_.used(use.recorded, use.first, use.access, use.moved);
  }
  mine.uses.resize(kept);
}

// As the arena counts it [Note: groups].
std::uint64_t PlainRecorder::note_need(const char*, std::span<const Operand> operands) {
  Lock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const Operand& operand : operands) {
    auto entry = live_.find(operand.address);
    if (entry != live_.end()) bytes += counted_bytes(entry->second.nbytes);
  }
  return bytes;
}

// Callers MUST be outside of all operators: a recording has no beginnings from before it.
Counters PlainRecorder::begin_step(bool record) {
  Lock lock(mutex_);
  this_thread = {};
  tape_.begin(record);
  for (auto& [address, live] : live_) live.recorded = tape_.was_there(live.serial, live.nbytes);
  return {};
}

Counters PlainRecorder::end_step(bool) {
  Lock lock(mutex_);
  std::int64_t now = now_ns();
  for (auto& [address, live] : live_) {
    if (!live.classified && live.born_in_step) live.kind = Kind::Other;
    live.born_in_step = false;
    tape_.is(live.recorded, live.kind);
    live.recorded = kNever;
  }
  tape_.end(0, now);
  return {};
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
