// Adoption: a storage born before the session, or mapped from a checkpoint, moves into the arena. Its bytes are copied
// and the StorageImpl's pointer is swapped, so every tensor and view follows. Whoever else holds the old address would
// not: so only memory whose owner is known to be the storage alone is taken.
#include <ATen/MapAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>

#include <cstring>

#include "allocator.hpp"
#include "plain_recorder.hpp"

namespace ebbtide {

namespace {

c10::DeleterFnPtr slice_deleter = nullptr;

// "" when the storage alone owns the memory behind `data`, else who does.
std::string outside_holder(const c10::DataPtr& data) {
  if (data.get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter()) return "";
  if (data.get_deleter() == watched_deleter()) return "";
  if (at::RefcountedMapAllocator::fromDataPtr(data) != nullptr) return "in shared memory";
  if (auto* map = at::MapAllocator::fromDataPtr(data)) {
    bool shared = (map->flags() & (at::ALLOCATOR_MAPPED_SHARED | at::ALLOCATOR_MAPPED_SHAREDMEM)) != 0;
    return shared ? "a file mapped for sharing" : "";
  }
  // A slice of another storage (what torch.load and safetensors make of a mapped file) is owned through that one.
  if (slice_deleter != nullptr && data.get_deleter() == slice_deleter) {
    auto* whole = static_cast<c10::StorageImpl*>(data.get_context());
    return outside_holder(whole->data_ptr());
  }
  return "its memory belongs to another library (from_numpy, DLPack, from_blob)";
}

// The pages of a file that only the copy needed; those that were written to since stay.
void drop_file_pages(void* data, std::size_t nbytes) {
  auto begin = round_up(reinterpret_cast<std::uintptr_t>(data), kSmallPage);
  auto end = (reinterpret_cast<std::uintptr_t>(data) + nbytes) / kSmallPage * kSmallPage;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_PAGEOUT);
}

}  // namespace

void learn_slice_deleter(const c10::StorageImpl& slice) { slice_deleter = slice.data_ptr().get_deleter(); }

std::pair<std::uint64_t, std::string> adopt(c10::StorageImpl& storage) {
  std::size_t nbytes = storage.nbytes();
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get() == nullptr || nbytes == 0 || nbytes < the_allocator()->min_bytes || the_arena()->contains(data.get())) return {0, ""};
  if (std::string holder = outside_holder(data); !holder.empty()) return {0, holder};
  bool mapped = data.get_deleter() != c10::GetDefaultCPUAllocator()->raw_deleter() && data.get_deleter() != watched_deleter();
  c10::DataPtr moved = the_allocator()->allocate_managed(nbytes);
  std::memcpy(moved.get(), data.get(), nbytes);
  if (mapped) drop_file_pages(data.get(), nbytes);
  storage.set_data_ptr_noswap(std::move(moved));
  storage.set_allocator(the_allocator());
  return {nbytes, ""};
}

}  // namespace ebbtide
