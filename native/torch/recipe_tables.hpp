// Which recipes there are. Any thread may ask, or change them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "recipe.hpp"

namespace ebbtide {

inline std::atomic<std::size_t> recipes_kept = 0;
inline bool any_recipes() { return recipes_kept.load(std::memory_order_relaxed) != 0; }

// This thread does not give up a reference now, since that may take Python's lock. It leaves what it discards to others, as threads do
// that Python does not know.
inline thread_local bool leaves_references = false;

RecipePointer recipe_of(const void* address);                   // null: it has none
std::vector<const void*> readers_of(const void* address);       // the storages made of it
const void* any_with_recipe();                                  // null: there is none

// The storage has this recipe from now on, if so far it has this other one, or null, and all ingredients of the last call still have
// theirs. Else it has none.
void put_on(RecipePointer recipe, const RecipePointer& before);
// Takes it off the tables, if it is this one or any will do. Callers let go of what it holds when they hold no mutex.
RecipePointer take_off(const void* address, const RecipePointer& only = nullptr);
// What it reads may be written to. Null is nothing.
void give_up(RecipePointer recipe);
// This thread needs it no more. Null is nothing.
void discard(RecipePointer recipe);
void give_up_discarded();

}  // namespace ebbtide
