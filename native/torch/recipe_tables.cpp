#include "recipe_tables.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "allocator.hpp"

namespace ebbtide {

namespace {

// Guards the tables below. Nobody runs an operator, or gives memory back, while he holds it.
std::mutex mutex;
std::map<const void*, RecipePointer> recipes;             // by the storage they make
std::map<const void*, std::vector<const void*>> readers;  // by the memory that is held, the storages made of it
std::vector<RecipePointer> discarded;  // by threads that leave references

void count() { recipes_kept = recipes.size() + discarded.size(); }

}  // namespace

RecipePointer take_off(const void* address, const RecipePointer& only) {
  std::lock_guard lock(mutex);
  auto found = recipes.find(address);
  if (found == recipes.end() || (only != nullptr && found->second != only)) return nullptr;
  RecipePointer recipe = std::move(found->second);
  recipes.erase(found);
  count();
  for (const Held& held : recipe->held) {
    auto reads = readers.find(held.address);
    std::erase(reads->second, address);
    if (reads->second.empty()) readers.erase(reads);
  }
  return recipe;
}

void discard(RecipePointer recipe) {
  if (!leaves_references) return;
  std::lock_guard lock(mutex);
  discarded.push_back(std::move(recipe));
  count();
}

void give_up(RecipePointer recipe) {
  if (recipe == nullptr) return;
  for (const Held& held : recipe->held) the_arena()->unguard(held.address);
  discard(std::move(recipe));
}

void give_up_discarded() {
  std::vector<RecipePointer> all;
  std::lock_guard lock(mutex);
  all.swap(discarded);
  count();
}

void put_on(RecipePointer recipe) {
  for (const Held& held : recipe->held) the_arena()->guard(held.address);
  void* address = recipe->address;
  {
    std::lock_guard lock(mutex);
    for (const Held& held : recipe->held) readers[held.address].push_back(address);
    recipes[address] = recipe;
    count();
    if (the_arena()->keep_recipe(address)) return;  // under the mutex: who takes it off the tables finds it kept, or not
  }
  give_up(take_off(address));
}

RecipePointer recipe_of(const void* address) {
  std::lock_guard lock(mutex);
  auto found = recipes.find(address);
  return found == recipes.end() ? nullptr : found->second;
}

std::vector<const void*> readers_of(const void* address) {
  std::lock_guard lock(mutex);
  auto found = readers.find(address);
  return found == readers.end() ? std::vector<const void*>() : found->second;
}

const void* any_with_recipe() {
  std::lock_guard lock(mutex);
  return recipes.empty() ? nullptr : recipes.begin()->first;
}

}  // namespace ebbtide
