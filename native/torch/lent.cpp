#include "lent.hpp"

#include <mutex>
#include <vector>

#include "operands.hpp"

namespace ebbtide {

namespace {

// By its address in the arena. The reference tells whether it is still the same storage there, and keeps none alive.
struct Lent {
  const void* address;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
};

std::mutex mutex;
std::vector<Lent> in_this_step, in_the_last;
thread_local std::vector<Lent> waited;

void let_go(std::vector<Lent>& all) {
  for (const Lent& lent : all) {
    if (!lent.storage.expired()) the_arena()->let_go(lent.address);
  }
  all.clear();
}

}  // namespace

void lend(const c10::IValue& argument, bool waited_for) {
  if (the_arena() == nullptr) return;  // nothing can leave
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    const void* address = managed_storage(tensor);
    if (address == nullptr || !the_arena()->hold(address)) return;
    std::lock_guard lock(mutex);
    (waited_for ? waited : in_this_step).push_back({address, tensor.storage().getWeakStorageImpl()});
  } else if (argument.isTensorList() || argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) lend(element, waited_for);
  }
}

void take_back_waited() {
  if (!waited.empty()) let_go(waited);
}

void take_back() {
  std::lock_guard lock(mutex);
  let_go(in_the_last);
  in_the_last.swap(in_this_step);
}

}  // namespace ebbtide
