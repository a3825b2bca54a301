#include "recipe_tables.hpp"

#include <Python.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "recipe_memory.hpp"

namespace ebbtide {

namespace {

// Guards the tables below. Nobody runs an operator, or gives memory back, while he holds it.
std::mutex tables_mutex;
std::map<const void*, RecipePointer> recipes;             // by the storage they make
std::map<const void*, std::vector<const void*>> readers;  // by the memory that is held, the storages made of it
std::vector<RecipePointer> discarded;  // by threads that leave references

thread_local std::vector<RecipePointer>* in_turn = nullptr;

void count() { recipes_kept = recipes.size() + discarded.size(); }

// Callers hold the mutex.
RecipePointer take(const void* address, const RecipePointer& only) {
  auto found = recipes.find(address);
  if (found == recipes.end() || (only != nullptr && found->second != only)) return nullptr;
  RecipePointer recipe = std::move(found->second);
  recipes.erase(found);
  for (const Held& held : recipe->held) {
    auto reads = readers.find(held.address);
    std::erase(reads->second, address);
    if (reads->second.empty()) readers.erase(reads);
  }
  count();
  return recipe;
}

// Callers hold the mutex.
bool is_good(const RecipePointer& recipe) {
  auto found = recipes.find(recipe->address);
  return found != recipes.end() && found->second == recipe && recipe_memory()->has_recipe(recipe->address);
}

// False: somebody else has got the address of what it reads since it was called, and nothing is guarded.
bool guard_what_it_reads(const Recipe& recipe) {
  for (auto held = recipe.held.begin(); held != recipe.held.end(); ++held) {
    if (recipe_memory()->guard(held->address)) continue;
    while (held != recipe.held.begin()) recipe_memory()->unguard((--held)->address);
    return false;
  }
  return true;
}

// Others may have got its address since it was guarded.
bool is_read_again(const Held& held) { return recipe_memory()->may_be_read_again(held.address); }

// A storage that has a Python object takes Python's lock as it goes. Who waits for this thread may hold it: a fork that waits for all
// to be made, or a region of OpenMP that waits for its threads.
bool leaves() { return leaves_references || PyGILState_GetThisThreadState() == nullptr; }

}  // namespace

RecipePointer take_off(const void* address, const RecipePointer& only) {
  std::lock_guard lock(tables_mutex);
  return take(address, only);
}

// Whoever lets go of a storage may be its last owner, and so let go of what its recipe holds. There may be thousands in a row, and a
// stack is short: the first of them lets go for all.
void discard(RecipePointer recipe) {
  if (recipe == nullptr) return;
  if (leaves()) {
    std::lock_guard lock(tables_mutex);
    discarded.push_back(std::move(recipe));
    return count();
  }
  if (in_turn != nullptr) return in_turn->push_back(std::move(recipe));
  std::vector<RecipePointer> all{std::move(recipe)};
  in_turn = &all;
  while (!all.empty()) {
    RecipePointer last = std::move(all.back());
    all.pop_back();
  }
  in_turn = nullptr;
}

void give_up(RecipePointer recipe) {
  if (recipe == nullptr) return;
  for (const Held& held : recipe->held) recipe_memory()->unguard(held.address);
  discard(std::move(recipe));
}

void give_up_discarded() {
  if (leaves()) return;
  std::vector<RecipePointer> all;
  {
    std::lock_guard lock(tables_mutex);
    all.swap(discarded);
    count();
  }
  for (RecipePointer& recipe : all) discard(std::move(recipe));
}

// First what it reads is guarded, and then it is seen whether somebody has written to that meanwhile: he has taken the recipes of
// the ingredients off, or of what was changed in place. Whoever writes from now on finds this one. So does who changes settings:
// he counts first, and then takes all off.
void put_on(RecipePointer recipe, const RecipePointer& before) {
  const bool is_guarded = guard_what_it_reads(*recipe);
  const void* address = recipe->address;
  RecipePointer found;
  bool stays = false;
  {
    std::lock_guard lock(tables_mutex);
    found = take(address, nullptr);
    if (is_guarded && found == before && recipe->changes == changes_begun && std::ranges::all_of(recipe->held, is_read_again) &&
        std::ranges::all_of(recipe->calls.back().ingredients, is_good)) {
      for (const Held& held : recipe->held) readers[held.address].push_back(address);
      recipes[address] = recipe;
      count();
      stays = recipe_memory()->keep_recipe(address);  // under the mutex: who takes it off the tables finds it kept, or not
      if (!stays) take(address, nullptr);
    }
  }
  give_up(std::move(found));
  if (!stays && is_guarded) return give_up(std::move(recipe));
  if (!stays) discard(std::move(recipe));
}

RecipePointer recipe_of(const void* address) {
  std::lock_guard lock(tables_mutex);
  auto found = recipes.find(address);
  return found == recipes.end() ? nullptr : found->second;
}

std::vector<const void*> readers_of(const void* address) {
  std::lock_guard lock(tables_mutex);
  auto found = readers.find(address);
  return found == readers.end() ? std::vector<const void*>() : found->second;
}

const void* any_with_recipe() {
  std::lock_guard lock(tables_mutex);
  return recipes.empty() ? nullptr : recipes.begin()->first;
}

}  // namespace ebbtide
