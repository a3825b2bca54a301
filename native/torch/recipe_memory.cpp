#include "recipe_memory.hpp"

#include <stdexcept>

#include "allocator.hpp"
#include "device_memory.hpp"
#include "operands.hpp"
#include "recipe.hpp"

namespace ebbtide {

namespace {

class ArenaRecipes final : public RecipeMemory {
 public:
  explicit ArenaRecipes(Arena& arena) : arena_(arena) {}

  bool knows_by_object() const override { return false; }
  const void* place_of(c10::StorageImpl& storage) override {
    const void* memory = storage._mutable_data_ptr_no_checks().get();
    return memory != nullptr && arena_.contains(memory) ? memory : nullptr;
  }
  const void* storage_at(const void* place) override { return arena_.storage_at(place); }
  std::shared_ptr<const void> keep_alive(c10::StorageImpl&, const void* address) override { return ebbtide::keep_alive(address); }
  std::span<const char> reach_of(const at::Tensor& tensor, const void* place) override {
    ByteRange range = bytes_of(tensor, tensor.storage().nbytes());
    return {static_cast<const char*>(place) + range.begin, range.bytes()};
  }
  std::uint64_t size_of(const void* address) override { return arena_.size_of(address); }
  std::size_t least_managed() const override { return the_allocator()->min_bytes.load(std::memory_order_relaxed); }
  bool may_be_read_again(const void* place) override { return !arena_.is_pinned_from_outside(place); }
  c10::Storage copy_of(const c10::Storage& storage) override { return copy_in_host_memory(storage); }
  std::uint32_t checksum_of(const void* address) override { return ebbtide::checksum_of(address, arena_.size_of(address)); }

  bool wants_recipes() override { return arena_.wants_recipes(); }
  bool wants_recipe(const void* address) override { return arena_.wants_recipe(address); }
  void want_all_recipes(bool all, unsigned one_in) override { arena_.want_all_recipes(all, one_in); }
  // Its pages would be changed for those of a storage that begins with them, so none of a slice is kept.
  bool keep_recipe(const void* address) override { return arena_.storage_at(address) == address && arena_.keep_recipe(address); }
  Forgotten forget_recipe(const void* address) override { return arena_.forget_recipe(address); }
  bool has_recipe(const void* address) override { return arena_.has_recipe(address); }
  bool is_ingredient(const void* address) override { return arena_.is_ingredient(address); }
  bool guard(const void* address) override { return arena_.guard(address); }
  void unguard(const void* address) override { arena_.unguard(address); }
  bool any_unmade() override { return arena_.unmade() != 0; }
  std::uint64_t unmade_by(const void* address, std::uint64_t nbytes) override { return arena_.unmade_by(address, nbytes); }
  bool hand_over(const void* from, const void* to, std::uint64_t recipe, bool keeps) override {
    return arena_.hand_over(from, to, recipe, keeps);
  }
  std::int64_t busy_ns() override { return arena_.busy_ns(); }
  void made_anew(std::int64_t ns) override { arena_.made_anew(ns); }
  void made_ingredient(std::uint64_t bytes) override { arena_.made_ingredient(bytes); }

 private:
  Arena& arena_;
};

}  // namespace

RecipeMemory* recipe_memory() {
  if (the_device_memory() != nullptr) return the_device_memory();
  if (the_arena() == nullptr) return nullptr;
  static auto* recipes = new ArenaRecipes(*the_arena());  // threads outlive what is destroyed at the end
  return recipes;
}

}  // namespace ebbtide
