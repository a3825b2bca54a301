// The storages behind an operator's arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <vector>

#include "allocator.hpp"
#include "watch.hpp"

namespace ebbtide {

// The managed storage behind a tensor, or null. Reads the pointer, never the bytes; materializes nothing.
inline const void* managed_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  const void* pointer = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  return pointer != nullptr && the_arena() != nullptr && the_arena()->contains(pointer) ? pointer : nullptr;
}

// The same for whoever watches, which may have to look closer at a storage that is new to it.
inline const void* watched_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return the_watch()->find(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// What an operator does with one argument. `overwrites`: it writes without reading.
struct Use {
  Access access = Access::ReadWrite;
  bool overwrites = false;
};

inline void collect_operands(const c10::IValue& value, Use use, std::vector<Operand>& operands) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    const void* pointer = watched_storage(tensor);
    if (pointer == nullptr) return;
    std::uint64_t nbytes = std::min<std::uint64_t>(static_cast<std::uint64_t>(tensor.numel()) * tensor.itemsize(), tensor.storage().nbytes());
    Access access = use.overwrites ? Access::Write : use.access;
    std::uint64_t moved = access == Access::ReadWrite ? 2 * nbytes : nbytes;
    auto known = std::ranges::find(operands, pointer, &Operand::address);
    if (known == operands.end()) {
      operands.push_back({pointer, use.access, moved});
    } else {  // an operand that comes twice: x.add_(x)
      known->access = static_cast<Access>(static_cast<int>(known->access) | static_cast<int>(use.access));
      known->moved += moved;
    }
  } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect_operands(element, use, operands);
  }
}

inline Access access_of(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite() ? Access::ReadWrite : Access::Read;
}

}  // namespace ebbtide
