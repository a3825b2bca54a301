// The storages behind an operator's arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "allocator.hpp"

namespace ebbtide {

// The managed storage behind a tensor, or null. Reads the pointer, never the bytes; materializes nothing.
inline const void* managed_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  const void* pointer = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  return pointer != nullptr && the_arena()->contains(pointer) ? pointer : nullptr;
}

inline void collect_operands(const c10::IValue& value, Access access, std::vector<Operand>& operands) {
  if (value.isTensor()) {
    if (const void* pointer = managed_storage(value.toTensor())) operands.push_back({pointer, access});
  } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect_operands(element, access, operands);
  }
}

inline Access access_of(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite() ? Access::ReadWrite : Access::Read;
}

}  // namespace ebbtide
