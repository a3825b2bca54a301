// What PyTorch tells of a storage's accesses.
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>

namespace ebbtide {

// [Note: what PyTorch tells]  Since 2.13 a storage can be told to call somebody before the first access that may write, and to
// refuse accesses, and be told the opposite. Older ones lack one of these, and then none is used.
template <typename Storage>
inline constexpr bool tells = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
  storage.clear_materializer();
};

template <typename Storage>
void refuse_access(Storage& storage, const std::string& text) {
  if constexpr (tells<Storage>) storage.release_data_and_set_meta_custom_data_ptr_error_msg_(text);
}

template <typename Storage>
void allow_access(Storage& storage) {
  if constexpr (tells<Storage>) storage.clear_data_ptr_access_error_msg_();
}

template <typename Storage>
bool is_lazy(Storage& storage) {  // it is somebody's copy on write
  if constexpr (tells<Storage>) return storage.has_materializer();
  return false;
}

// False: somebody else is called already.
template <typename Storage>
bool call_before_write(Storage& storage, void (*call)(c10::StorageImpl*)) {
  if constexpr (tells<Storage>) {
    if (storage.has_materializer()) return false;
    storage.set_materializer(call);
    return true;
  }
  return false;
}

template <typename Storage>
void call_no_more(Storage& storage) {
  if constexpr (tells<Storage>) storage.clear_materializer();
}

}  // namespace ebbtide
