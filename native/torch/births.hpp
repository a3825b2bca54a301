// What operators allocate [RecipeMemory has what an address is].
#pragma once

#include <vector>

namespace ebbtide {

// What an operator allocates on its thread, in order; those of inner operators count. What it has freed is null: another thread's
// storage may lie there.
class Births {
 public:
  Births();
  ~Births();
  Births(const Births&) = delete;
  Births& operator=(const Births&) = delete;

  const std::vector<const void*>& addresses() const { return addresses_; }
  bool are_spoiled() const { return spoiled_; }
  static void note(const void* address);
  static void forget(const void* address);  // it is freed
  // An operator begins within others. If it does not repeat, or is called above autograd (by a hook, a mode, a kernel of the
  // script's), those are more than their kernels, and cannot be called again below all that.
  static void look_at_inner(bool repeats);

 private:
  Births* const outer_;
  std::vector<const void*> addresses_;
  bool spoiled_ = false;
};

// What this thread's operators allocate meanwhile is nobody's.
class NoBirths {
 public:
  NoBirths();
  ~NoBirths();
  NoBirths(const NoBirths&) = delete;
  NoBirths& operator=(const NoBirths&) = delete;

 private:
  Births* const outer_;
};

}  // namespace ebbtide
