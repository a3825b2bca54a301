#include "allocator.hpp"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "collective_pins.hpp"
#include "deferred.hpp"
#include "lines.hpp"
#include "recipes.hpp"
#include "watch.hpp"

namespace ebbtide {

namespace {

constexpr std::uint8_t kPriority = 255;
const c10::Device kCpu(c10::DeviceType::CPU);

Arena* arena = nullptr;
ArenaAllocator* allocator = nullptr;

struct KeptAlive {
  std::size_t number = 0;
  bool has_no_storage = false;
};
std::mutex alive_mutex;
auto& kept_alive = *new std::unordered_map<const void*, KeptAlive>;  // threads outlive what is destroyed at the end
std::atomic<std::size_t> are_kept_alive = 0;

void let_die(const void* address) {
  {
    std::lock_guard lock(alive_mutex);
    auto kept = kept_alive.find(address);
    if (--kept->second.number > 0) return;
    bool has_no_storage = kept->second.has_no_storage;
    kept_alive.erase(kept);
    are_kept_alive = kept_alive.size();
    if (!has_no_storage) return;
  }
  release_pointer(const_cast<void*>(address));
}

// Its storage has gone. Whether it lives on.
bool lives_on(const void* address) {
  if (are_kept_alive.load() == 0) return false;
  std::lock_guard lock(alive_mutex);
  auto kept = kept_alive.find(address);
  if (kept == kept_alive.end()) return false;
  kept->second.has_no_storage = true;
  return true;
}

void report(void* pointer, std::int64_t change) {
  if (!c10::memoryProfilingEnabled()) return;
  Counters c = arena->counters();
  c10::reportMemoryUsageToProfiler(pointer, change, c.live, c.reserved, kCpu);
}

}  // namespace

void release_pointer(void* pointer) {
  if (pointer == nullptr) return;
  const bool is_managed = arena->contains(pointer);
  if (anything_deferred()) end_guards_of(pointer, is_managed && !arena->in_child() ? arena->size_of(pointer) : 0);
  if (!is_managed) {
    allocator->previous_.raw_deleter()(pointer);
    return;
  }
  if (arena->in_child()) return;  // a child has nothing to give back
  if (lives_on(pointer)) return;  // and comes here again
  Births::forget(pointer);
  if (any_recipes()) forget_recipes_of(pointer);
  std::uint64_t nbytes = c10::memoryProfilingEnabled() ? arena->size_of(pointer) : 0;
  arena->release(pointer);
  report(pointer, -static_cast<std::int64_t>(nbytes));
}

std::shared_ptr<const void> keep_alive(const void* address) {
  {
    std::lock_guard lock(alive_mutex);
    ++kept_alive[address].number;
    are_kept_alive = kept_alive.size();
  }
  return {address, let_die};
}

c10::DataPtr ArenaAllocator::allocate(std::size_t nbytes) {
  bool untouched = std::exchange(next_is_untouched, false);
  if (nbytes >= min_bytes.load(std::memory_order_relaxed) && nbytes > 0 && on.load(std::memory_order_relaxed) &&
      !arena_.in_child()) {
    return allocate_managed(nbytes, untouched);
  }
  void* pointer = previous_.raw_allocate(nbytes);
  return {pointer, pointer, &release_pointer, kCpu};
}

c10::DataPtr ArenaAllocator::allocate_managed(std::size_t nbytes, bool untouched) {
  void* pointer = nullptr;
  BirthLine line(arena_.tape());
  try {
    pointer = arena_.allocate(nbytes, untouched);
  } catch (const ArenaError& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "ebbtide: ", error.what());
  }
  if (is_a_collectives_own()) arena_.pin(pointer);
  Births::note(pointer);
  report(pointer, static_cast<std::int64_t>(nbytes));
  return {pointer, pointer, &release_pointer, kCpu};
}

c10::DeleterFnPtr ArenaAllocator::raw_deleter() const { return &release_pointer; }

Arena* the_arena() { return arena; }
ArenaAllocator* the_allocator() { return allocator; }

void make_arena(const Options& options, Tiers::List slower_tiers) {
  if (arena == nullptr) arena = new Arena(options, std::move(slower_tiers));
}

void install_allocator() {
  if (allocator != nullptr) return;
  allocator = new ArenaAllocator(*arena, *c10::GetCPUAllocator());
  c10::SetCPUAllocator(allocator, kPriority);
}

void check_allocator() {
  if (c10::GetCPUAllocator()->raw_deleter() != nullptr) return;
  throw ArenaError("another CPU allocator is installed that Ebbtide cannot stand in front of; start the session before it");
}

}  // namespace ebbtide
