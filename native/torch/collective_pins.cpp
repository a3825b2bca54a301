#include "collective_pins.hpp"

#include <mutex>
#include <vector>

#include "operands.hpp"

namespace ebbtide {

namespace {

// By its address in the arena. The reference tells whether it is still the same storage there, and keeps none alive.
struct Pinned {
  const void* address;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
};

std::mutex mutex;
std::vector<Pinned> in_this_step, in_the_last;
thread_local std::vector<Pinned> waited_for_pins;

void unpin_all(std::vector<Pinned>& all) {
  for (const Pinned& pinned : all) {
    if (!pinned.storage.expired()) the_arena()->unpin(pinned.address);
  }
  all.clear();
}

}  // namespace

void pin_for_collective(const c10::IValue& argument, bool waited_for) {
  if (the_arena() == nullptr) return;  // nothing can be evicted
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    const void* address = managed_storage(tensor);
    if (address == nullptr || the_arena()->pin(address) != 0) return;
    std::lock_guard lock(mutex);
    (waited_for ? waited_for_pins : in_this_step).push_back({address, tensor.storage().getWeakStorageImpl()});
  } else if (argument.isTensorList() || argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) pin_for_collective(element, waited_for);
  }
}

void unpin_waited_for() {
  if (!waited_for_pins.empty()) unpin_all(waited_for_pins);
}

void unpin_last_step() {
  std::lock_guard lock(mutex);
  unpin_all(in_the_last);
  in_the_last.swap(in_this_step);
}

}  // namespace ebbtide
