// Adoption: a storage born before the session, or mapped from a checkpoint, moves into the arena. Its bytes are copied
// and the StorageImpl's pointer is swapped, so every tensor and view follows. Whoever else holds the old address would
// not: so only what is proven to be held by nobody else is taken [Note: what proves it].
#include <ATen/MapAllocator.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstring>

#include "../objects/objects.hpp"
#include "allocator.hpp"
#include "cpp_owners.hpp"
#include "holders.hpp"
#include "standstill.hpp"

namespace ebbtide {

namespace {

// The pages of a file that only the copy needed; those that were written to since stay.
void drop_file_pages(void* data, std::size_t nbytes) {
  auto begin = round_up(reinterpret_cast<std::uintptr_t>(data), kSmallPage);
  auto end = (reinterpret_cast<std::uintptr_t>(data) + nbytes) / kSmallPage * kSmallPage;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_PAGEOUT);
}

void move_in(c10::StorageImpl& storage) {
  std::size_t nbytes = storage.nbytes();
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  bool mapped = is_slice(data) || at::MapAllocator::fromDataPtr(data) != nullptr;
  const std::size_t begin = reinterpret_cast<std::uintptr_t>(data.get()) % kAlignment;  // that of a mapped checkpoint's header
  c10::DataPtr moved = the_allocator()->allocate_managed(begin + nbytes, true);  // filled from its first piece to its last
  if (begin != 0) {
    c10::Storage whole(c10::Storage::use_byte_size_t(), begin + nbytes, std::move(moved), the_allocator(), false);
    moved = slice_of(std::move(whole), begin);
  }
  std::memcpy(moved.get(), data.get(), nbytes);
  if (mapped) drop_file_pages(data.get(), nbytes);
  storage.set_data_ptr_noswap(std::move(moved));
  storage.set_allocator(the_allocator());
}

}  // namespace

std::optional<Adopted> adopt_all(PyObject* attributes, PyObject* locals, PyObject* roots) {
  Adopted result;
  if (the_allocator() == nullptr) return result;  // nothing of the CPU's is the arena's
  std::vector<PyObject*> objects = all_objects(roots);
  THPObjectPtr owners(named_owners(objects, attributes));
  if (owners) objects = all_objects(roots);
  Standstill standstill;
  if (!standstill.reached()) return std::nullopt;
  for (Found& found : find_unmanaged(std::move(objects), owners.get(), locals, the_allocator()->min_bytes)) {
    std::size_t nbytes = found.storage->nbytes();
    if (!found.holder.empty()) {
      result.left_alone.emplace_back(nbytes, std::move(found.holder));
    } else {
      move_in(*found.storage);
      result.bytes += nbytes;
    }
  }
  return result;
}

}  // namespace ebbtide
