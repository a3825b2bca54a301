// The memory whose storages have recipes [recipes.hpp]: the arena, or an accelerator's. A process has one of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../core/arena.hpp"

namespace ebbtide {

// A storage is known by an address: in the arena by that of its first byte. On an accelerator, where storages get other memory, by
// that of its StorageImpl.
class RecipeMemory {
 public:
  virtual ~RecipeMemory() = default;

  virtual bool knows_by_object() const = 0;
  virtual const void* place_of(c10::StorageImpl& storage) = 0;  // where it begins, maybe within another one; null: not managed
  virtual const void* storage_at(const void* place) = 0;
  // Of a storage that may be within the one at this address: that lives on as long as somebody has this.
  virtual std::shared_ptr<const void> keep_alive(c10::StorageImpl& storage, const void* address) = 0;
  virtual std::span<const char> reach_of(const at::Tensor& tensor, const void* place) = 0;  // what it needs of its storage
  virtual std::uint64_t size_of(const void* address) = 0;
  virtual std::size_t least_managed() const = 0;
  virtual bool may_be_read_again(const void* place) = 0;  // whoever else reaches it is seen
  virtual c10::Storage copy_of(const c10::Storage& storage) = 0;  // of a small one that is not managed, in the order of operators
  virtual std::uint32_t checksum_of(const void* address) = 0;

  // These are the arena's [Arena].
  virtual bool wants_recipes() = 0;
  virtual bool wants_recipe(const void* address) = 0;
  virtual void want_all_recipes(bool all, unsigned one_in) = 0;
  virtual bool keep_recipe(const void* address) = 0;
  virtual Forgotten forget_recipe(const void* address) = 0;
  virtual bool has_recipe(const void* address) = 0;
  virtual bool is_ingredient(const void* address) = 0;
  virtual bool guard(const void* address) = 0;  // false: others may write there, and it is not guarded
  virtual void unguard(const void* address) = 0;
  virtual bool is_guarded(const void*) { return true; }  // nobody gave it other memory, with no operator
  virtual bool any_unmade() = 0;
  virtual std::uint64_t unmade_by(const void* address, std::uint64_t nbytes) = 0;
  virtual bool hand_over(const void* from, const void* to, std::uint64_t recipe, bool keeps) = 0;
  virtual std::int64_t busy_ns() = 0;
  virtual void made_anew(std::int64_t ns) = 0;
  virtual void made_ingredient(std::uint64_t bytes) = 0;

  // It is made now, on this stream if it has one. `again`: there was no memory for it.
  virtual std::optional<c10::Stream> begin_making(const void*, [[maybe_unused]] bool again) { return std::nullopt; }
  // There is no memory to make it: who uses it gets an error. False: nobody can be told.
  virtual bool refuse(const void*, const std::string&) { return false; }
  // Whether this thread's last operator failed for want of memory for what it reads.
  virtual bool lacked_memory() { return false; }
  // Those that ended since this was called last. They have their addresses until it is called again.
  virtual std::vector<const void*> ended() { return {}; }
};

RecipeMemory* recipe_memory();  // null before there is one

}  // namespace ebbtide
