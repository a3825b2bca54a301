// The maker: storages that can be made anew, by the operators that made them [Note: recipes].
//
// A recipe has the operators that made a storage, on its way from its allocation to the contents it has now, with their arguments.
// They are pure functions of these (repeatable.hpp). Large arguments are held, so that their memory lives on and nobody writes to it
// unnoticed, or made by recipes of their own [Note: ingredients]; small ones are copied. The operators run again in other memory,
// whose pages the storage gets when they have ended. So nobody sees half of it, whichever thread it is made on.
//
// Who is about to use a storage has it made first: every operator comes by prepare_for(). All others, in a signal handler too, ask
// a thread of the maker's own, and wait (ask_to_make). Who is about to write to what a recipe reads comes by here likewise.
//
// Left out: results of operators on arguments that are no plain CPU tensors, and those that read memory which is large and not the
// arena's.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "births.hpp"
#include "operands.hpp"
#include "recipe_tables.hpp"

namespace ebbtide {

// An operator that is under way, and makes recipes for what it gives birth to, or goes on with that of what it changes.
class KeptCall {
 public:
  // Of the operator that has just begun. What it changes in place has this recipe, or none. Null: it cannot be called again like
  // this, and what it changes has no recipe any more.
  static std::unique_ptr<KeptCall> of(const c10::OperatorHandle& op, at::ArrayRef<const c10::IValue> arguments,
                                      RecipePointer changed, std::uint64_t version);
  ~KeptCall();  // it has ended: keeps the recipes

 private:
  KeptCall() = default;

  std::shared_ptr<Recipe> made_;  // of what it gives birth to: without its storage
  RecipePointer changed_;
  Births births_;
  int exceptions_ = 0;  // that were in flight when it began
};

// Makes what is away among an operator's arguments, and frees what it writes to of recipes. Returns the recipe of the first argument
// if that is `changed` in place, for KeptCall::of().
RecipePointer prepare_for(at::ArrayRef<const c10::IValue> arguments, const std::vector<Use>& uses, bool writes_all, bool changed);

// This memory is given back.
void forget_recipes_of(const void* address);

// Makes what is away of the storage there. False: there is no memory for it.
bool make_anew(const void* address);

// Somebody gets the address of the storage there, and may write to it: as if he did so now. False: what that needs cannot be made.
bool give_away(const void* address);

// Asks the maker's threads for what lies there, or, to write there, for what is made of it; async-signal-safe. Asking again is right:
// there is room for so many requests alone.
void ask_to_make(const void* address, bool to_write);

// Makes all that is away, before a fork and at a session's end, and forgets all recipes.
void make_all();

// Come before and after a change of settings or kernels, of which the first MUST have all made. Operators that are under way, and
// those that are called meanwhile, keep no recipe.
void begin_change();
void end_change();

// Has every storage that can be made anew have a recipe, whatever a schedule says, and by its address one in so many be an ingredient
// of what is made of it; 0: none is. For tests.
void want_all_recipes(bool all, unsigned one_in);

// Has the bytes of what is made anew compared with what they were, by a checksum.
void check_what_is_made(bool check);

}  // namespace ebbtide
