// The storages behind an operator's arguments.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <span>
#include <vector>

#include "allocator.hpp"
#include "watch.hpp"

namespace ebbtide {

// Returns the storage behind a tensor, or null, and materializes nothing.
inline c10::StorageImpl* storage_behind(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Returns its address if it is managed, or null. It reads the pointer, never the bytes.
inline const void* managed_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_behind(tensor);
  const void* pointer = storage == nullptr ? nullptr : storage->_mutable_data_ptr_no_checks().get();
  return pointer != nullptr && the_arena() != nullptr && the_arena()->contains(pointer) ? pointer : nullptr;
}

// Returns the watched storage. A recorder may have to look closer at a storage that is new to it.
inline const void* watched_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_behind(tensor);
  return storage == nullptr ? nullptr : the_watch()->find(*storage);
}

// The use that an operator makes of one argument. `overwrites`: it writes without reading.
struct Use {
  Access access = Access::ReadWrite;
  bool overwrites = false;
};

// Visits the tensors with a storage that a tensor is made of: itself, or the indices and values of a sparse one, of any layout.
// (Nested and quantized ones have a storage. One of oneDNN's layout has memory of its own, which no allocator of ours made.)
template <typename Visit>
void for_each_part(const at::Tensor& tensor, const Visit& visit) {
  if (storage_behind(tensor) != nullptr) {
    visit(tensor);
  } else if (auto* coo = dynamic_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())) {
    for_each_part(coo->indices(), visit);
    for_each_part(coo->values(), visit);
  } else if (auto* compressed = dynamic_cast<const at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl())) {
    for_each_part(compressed->compressed_indices(), visit);
    for_each_part(compressed->plain_indices(), visit);
    for_each_part(compressed->values(), visit);
  }
}

// Those of an argument: a tensor, a list, a tuple or a dict of them, or something else.
template <typename Visit>
void for_each_part(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    for_each_part(value.toTensor(), visit);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_part(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_part(element, visit);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) for_each_part(entry.value(), visit);
  }
}

// Returns the bytes of its storage from a tensor's first element to its last; all of it where that cannot be told. Nothing asks
// for less of a storage without pieces.
inline ByteRange bytes_of(const at::Tensor& tensor, std::uint64_t storage_bytes) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const ByteRange all{0, storage_bytes};
  if (storage_bytes < least_in_pieces.load(std::memory_order_relaxed) || impl.has_symbolic_sizes_strides() ||
      tensor.is_nested() || impl.is_python_dispatch())
    return all;
  if (tensor.layout() != c10::kStrided) return all;
  if (tensor.numel() == 0) return {0, 0};
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  auto first = static_cast<std::uint64_t>(tensor.storage_offset()) * tensor.itemsize();
  return {first, first + (static_cast<std::uint64_t>(last) + 1) * tensor.itemsize()};
}

// Likewise, where these bytes of a tensor lie that is managed and not empty.
inline std::span<const char> reach_of(const at::Tensor& tensor) {
  ByteRange range = bytes_of(tensor, tensor.storage().nbytes());
  return {static_cast<const char*>(managed_storage(tensor)) + range.begin, range.bytes()};
}

inline void collect_operands(const c10::IValue& value, Use use, std::vector<Operand>& operands) {
  if (value.isStorage()) {  // of set_()
    c10::Storage storage = value.toStorage();
    const void* pointer = the_watch()->find(*storage.unsafeGetStorageImpl());
    if (pointer != nullptr) operands.push_back({pointer, Access::Read, 0, {0, storage.nbytes()}});
    return;
  }
  for_each_part(value, [&](const at::Tensor& tensor) {
    const void* pointer = watched_storage(tensor);
    if (pointer == nullptr) return;
    std::uint64_t storage_bytes = tensor.storage().nbytes();
    std::uint64_t nbytes = std::min<std::uint64_t>(static_cast<std::uint64_t>(tensor.numel()) * tensor.itemsize(), storage_bytes);
    ByteRange range = bytes_of(tensor, storage_bytes);
    Access access = use.overwrites ? Access::Write : use.access;
    std::uint64_t moved = access == Access::ReadWrite ? 2 * nbytes : nbytes;
    auto known = std::ranges::find_if(operands, [&](const Operand& o) { return o.address == pointer && o.range == range; });
    if (known == operands.end()) {
      operands.push_back({pointer, use.access, moved, range});
    } else {  // an operand that comes twice: x.add_(x)
      known->access = static_cast<Access>(static_cast<int>(known->access) | static_cast<int>(use.access));
      known->moved += moved;
    }
  });
}

inline Access access_of(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite() ? Access::ReadWrite : Access::Read;
}

}  // namespace ebbtide
