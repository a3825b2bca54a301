#include "collective_pins.hpp"

#include <Python.h>

#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/per_thread.hpp"
#include "operands.hpp"

namespace ebbtide {

namespace {

// A storage by its address in the arena. The reference tells whether it is still the same storage there, and keeps none alive.
struct Pinned {
  const void* address;
  std::uint64_t nbytes;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
};

// A collective that has not ended, as far as is known. `held` is empty, or what looked at it without giving it up again.
struct UnderWay {
  c10::weak_intrusive_ptr<c10d::Work> work;
  c10::intrusive_ptr<c10d::Work> held;
  std::vector<Pinned> pins;
  bool unpinned = false;

  bool ended() {
    if (!held) held = work.lock();
    return !held || held->isCompleted();
  }
};

std::mutex pins_mutex;
std::vector<Pinned> in_this_step, in_the_last;
std::vector<UnderWay> under_way;
std::atomic<std::size_t> n_under_way = 0, n_pinning = 0;
std::atomic<bool> are_there = false;  // a collective has begun
struct Pins {
  std::vector<Pinned> waited_for, now;
};
Pins& pins_here() { return of_this_thread<Pins>(); }

thread_local int depth = 0;
thread_local bool result_is_seen = false;  // of the collective at hand
at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

void unpin(const std::vector<Pinned>& all) {
  for (const Pinned& pinned : all) {
    if (!pinned.storage.expired()) the_arena()->unpin(pinned.address, pinned.nbytes);
  }
}

void unpin_all(std::vector<Pinned>& all) {
  unpin(all);
  all.clear();
}

// What is pinned now stays until that has completed.
void pin_until_ended(const c10::intrusive_ptr<c10d::Work>& work) {
  std::lock_guard lock(pins_mutex);
  under_way.push_back({c10::weak_intrusive_ptr<c10d::Work>(work), {}, std::exchange(pins_here().now, {}), false});
  n_under_way = under_way.size();
  ++n_pinning;
}

// Looks at what an operator returned; nothing where it raised. The recorder's own callback has ended before.
void look_at_result(const at::RecordFunction& function, at::ObserverContext*) {
  if (pins_here().now.empty() || !std::string_view(function.name()).starts_with("c10d::")) return;
  for (const c10::IValue& output : function.outputs()) {
    if (!output.isCustomClass()) continue;
    pin_until_ended(output.toCustomClass<c10d::Work>());
    return;
  }
  unpin_all(pins_here().now);
}

// Only where there are collectives, since what every operator returns is boxed for it. Whether it was done before.
bool watch_results() {
  std::lock_guard lock(pins_mutex);
  if (callback != at::INVALID_CALLBACK_HANDLE) return true;
  auto begins = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; };
  callback = at::addGlobalCallback(
      at::RecordFunctionCallback(begins, look_at_result).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  return false;
}

// Unpins what those pinned for which it holds, and `drops` what is over: the last reference to a Work gives up tensors and
// Python objects, for which it takes Python's lock.
template <typename Condition>
void unpin_where(Condition holds, bool drops) {
  std::vector<UnderWay> over;  // given up without the mutex
  std::vector<c10::intrusive_ptr<c10d::Work>> looked_at;
  std::lock_guard lock(pins_mutex);
  n_pinning = 0;
  for (UnderWay& each : under_way) {
    if (!each.unpinned && holds(each)) {
      unpin(each.pins);
      each.unpinned = true;
    }
    if (!each.unpinned) ++n_pinning;
    if (drops) looked_at.push_back(std::move(each.held));
  }
  if (!drops) return;
  auto rest = std::stable_partition(under_way.begin(), under_way.end(), [](const UnderWay& each) { return !each.unpinned; });
  over.assign(std::move_iterator(rest), std::move_iterator(under_way.end()));
  under_way.erase(rest, under_way.end());
  n_under_way = under_way.size();
}

}  // namespace

void enter_collective() {
  if (depth++ > 0 || the_arena() == nullptr) return;
  are_there = true;
  result_is_seen = watch_results();
  std::lock_guard lock(pins_mutex);
  std::vector<Pinned>& now = pins_here().now;
  in_this_step.insert(in_this_step.end(), now.begin(), now.end());  // none, but where another thread's came first
  now.clear();
}

void exit_collective() {
  if (--depth > 0 || result_is_seen) return;
  std::lock_guard lock(pins_mutex);
  in_this_step.insert(in_this_step.end(), pins_here().now.begin(), pins_here().now.end());
  pins_here().now.clear();
}

void exit_backend(c10d::Work* work) {
  if (--depth > 0) return;
  if (work == nullptr) {
    unpin_all(pins_here().now);
  } else if (!pins_here().now.empty()) {
    pin_until_ended(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(work));
  }
}

bool in_collective() { return depth > 0; }

bool is_a_collectives_own() { return in_collective() || (are_there && PyGILState_GetThisThreadState() == nullptr); }

void pin_for_collective(const c10::IValue& argument, bool waited_for) {
  if (the_arena() == nullptr) return;  // nothing can be evicted
  for_each_part(argument, [waited_for](const at::Tensor& tensor) {
    const void* storage = managed_storage(tensor);
    if (storage == nullptr) return;
    ByteRange range = bytes_of(tensor, tensor.storage().nbytes());
    const void* address = static_cast<const char*>(storage) + range.begin;
    std::uint64_t nbytes = range.bytes();
    if (nbytes == 0 || the_arena()->pin(address, nbytes) != 0) return;
    (waited_for ? pins_here().waited_for : pins_here().now).push_back({address, nbytes, tensor.storage().getWeakStorageImpl()});
  });
}

void unpin_waited_for() {
  if (!pins_here().waited_for.empty()) unpin_all(pins_here().waited_for);
}

void unpin_ended(bool drops) {
  if (n_under_way > 0) unpin_where([](UnderWay& each) { return each.ended(); }, drops);
}

bool collectives_under_way() { return n_pinning > 0; }

void unpin_last_step() {
  unpin_where([](UnderWay& each) { return each.ended(); }, true);
  std::lock_guard lock(pins_mutex);
  unpin_all(in_the_last);
  in_the_last.swap(in_this_step);
}

}  // namespace ebbtide
