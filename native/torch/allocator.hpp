// The c10::Allocator in front of the arena, and the one arena of the process.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "../core/arena.hpp"

namespace ebbtide {

inline constexpr std::uintptr_t kAlignment = 64;  // of operands: those that lie otherwise may have other bits

// The deleter of a storage's memory, the arena's or another's.
void release_pointer(void* pointer);

// Serves CPU storages of `min_bytes` and more from the arena while it is on. All others come from the previous allocator. It is
// never destroyed: deleters run after the interpreter is gone.
class ArenaAllocator final : public c10::Allocator {
 public:
  ArenaAllocator(Arena& arena, c10::Allocator& previous) : arena_(arena), previous_(previous) {}

  c10::DataPtr allocate(std::size_t nbytes) override;
  // The context is the pointer itself, so raw_allocate works; one deleter serves both sources.
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { default_copy_data(to, from, nbytes); }

  // Or the previous one has.
  bool has_allocated(const c10::DataPtr& memory) const {
    return memory.get() == nullptr || memory.get_deleter() == raw_deleter() || memory.get_deleter() == previous_.raw_deleter();
  }
  c10::DataPtr allocate_managed(std::size_t nbytes, bool untouched = false);

  std::atomic<bool> on{false};
  std::atomic<std::size_t> min_bytes{0};

 private:
  friend void release_pointer(void* pointer);

  Arena& arena_;
  c10::Allocator& previous_;
};

// Memory of the arena that recipes read. It lives on when its storage has gone, and as long as somebody has this. So the storage
// itself is held by the script alone: autograd adds to a gradient in place where nobody else has its storage, and a script may have
// weak references to it.
std::shared_ptr<const void> keep_alive(const void* address);

Arena* the_arena();              // null before make_arena()
ArenaAllocator* the_allocator();  // null before install_allocator()

// Makes the arena, once. Throws ArenaError.
void make_arena(const Options& options, Tiers::List slower_tiers);
// Both put the allocator in front of PyTorch's own for CPUs, once. The first throws ArenaError where that cannot be.
void check_allocator();
void install_allocator();

}  // namespace ebbtide
