// A maker for tests: what native/torch/recipes.cpp is for the arena, with one operator.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check.hpp"

namespace ebbtide {

// A maker whose one operator adds up two storages, word by word.
class Maker {
 public:
  Maker() {
    sem_init(&asked_, 0, 0);
    std::thread([this] { make_what_is_asked(); }).detach();
  }

  // Async-signal-safe.
  void ask(const void* address, bool to_write) {
    (to_write ? to_free_ : to_make_) = address;
    sem_post(&asked_);
  }

  void learn(const void* sum, std::size_t n, const void* one, const void* other) {
    std::lock_guard lock(mutex_);
    recipes_[sum] = {n, one, other};
  }

  // A sum that was made just now, where the arena takes its recipe. Nobody forgets it meanwhile: who does ends its guards.
  void keep(const void* sum, std::size_t n, const void* one, const void* other) {
    std::lock_guard alone(alone_);
    learn(sum, n, one, other);
    arena->guard(one), arena->guard(other);
    if (!arena->keep_recipe(sum)) forget(sum);
  }

  // Nobody makes it meanwhile: it has no recipe, and its pages may have gone.
  void release(void* address) {
    std::lock_guard alone(alone_);
    free(address);
    forget(address);
    arena->release(address);
  }

  void make(const void* address) {
    std::lock_guard alone(alone_);
    std::uint64_t number = arena->unmade_by(address);
    if (number == 0) return;
    const void* sum = arena->storage_at(address);
    Recipe recipe = of(sum);
    bool before = std::exchange(off_the_record, true);
    const ByteRange all = {0, recipe.n};
    Operand reads[] = {{recipe.one, Access::Read, 0, all}, {recipe.other, Access::Read, 0, all}};
    arena->enter("test::add", reads, Work::Itself);
    auto* made = static_cast<std::uint32_t*>(arena->allocate(recipe.n));
    auto *one = static_cast<const std::uint32_t*>(recipe.one), *other = static_cast<const std::uint32_t*>(recipe.other);
    for (std::size_t i = 0; i < recipe.n / 4; ++i) made[i] = one[i] + other[i];
    arena->exit();
    handed_over_ += arena->hand_over(made, sum, number, keeps);
    arena->release(made);
    off_the_record = before;
  }

  // What is made of it is made, and has no recipe any more.
  void free(const void* address) {
    std::lock_guard alone(alone_);
    for (const void* sum : made_of(address)) {
      while (arena->forget_recipe(sum) == Forgotten::NotYet) make(sum);
      forget(sum);
    }
  }

  // It dies, or is about to be written to: it has no recipe any more, if it had one.
  void forget(const void* sum) {
    std::lock_guard alone(alone_);
    Recipe recipe;
    {
      std::lock_guard lock(mutex_);
      auto known = recipes_.find(sum);
      if (known == recipes_.end()) return;
      recipe = known->second;
      recipes_.erase(known);
    }
    arena->unguard(recipe.one), arena->unguard(recipe.other);
  }

  Arena* arena = nullptr;
  bool keeps = false;
  int handed_over() {
    std::lock_guard alone(alone_);
    return handed_over_;
  }

 private:
  struct Recipe {
    std::size_t n;
    const void *one, *other;
  };

  void make_what_is_asked() {
    for (;;) {
      while (sem_wait(&asked_) != 0) {}
      if (const void* address = to_make_.exchange(nullptr)) make(address);
      if (const void* address = to_free_.exchange(nullptr)) free(address);
    }
  }

  Recipe of(const void* sum) {
    std::lock_guard lock(mutex_);
    return recipes_.at(sum);
  }

  std::vector<const void*> made_of(const void* address) {
    std::lock_guard lock(mutex_);
    std::vector<const void*> found;
    for (auto& [sum, recipe] : recipes_) {
      if (recipe.one == address || recipe.other == address) found.push_back(sum);
    }
    return found;
  }

  sem_t asked_;
  std::atomic<const void*> to_make_ = nullptr, to_free_ = nullptr;  // who finds his request gone asks again
  int handed_over_ = 0;
  std::recursive_mutex alone_;  // who asks again finds the work done
  std::mutex mutex_;
  std::unordered_map<const void*, Recipe> recipes_;
};

inline Maker* maker = nullptr;  // of the arena that was made last

// Callers MUST tell it of its arena.
inline void start_maker(Options& options) {
  static std::vector<Maker*> makers;  // their threads go on, like the arenas
  makers.push_back(maker = new Maker);
  options.make = [](const void* address) { maker->make(address); };
  options.make_all = [] {};
  options.ask_to_make = [](const void* address, bool to_write) { maker->ask(address, to_write); };
}

}  // namespace ebbtide
