// The operators a thread is in, innermost last, with the storages each one holds.
//
// Only the innermost operator's storages are out of reach for evictions: an outer one touches nothing until the inner
// one returns, so its storages are evicted last, but they can be (and are fetched on demand).
#pragma once

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "pieces.hpp"
#include "types.hpp"

namespace ebbtide {

// What an operator does with a storage: bits, as in ebbtide.ir.trace.Access.
enum class Access : std::uint8_t { Read = 1, Write = 2, ReadWrite = 3 };
inline constexpr std::array<const char*, 4> kAccessNames{"", "read", "write", "read_write"};

struct Operand {
  const void* address;  // of its storage
  Access access = Access::ReadWrite;
  std::uint64_t moved = 0;  // bytes that it reads and writes there
  ByteRange range{};        // of the storage, which it does not leave
};

// Whether an operator's storages bound the smallest possible budget.
enum class Work : std::uint8_t {
  Itself,    // it needs all of them at once
  InOrder,   // it goes through them, so pieces of them may come and go [Note: pieces]
  InGroups,  // a piece of a list, cut to fit: Arena::note_need says what one element needs
};

// What an operator outside the ones that are running does for the training.
enum class Pass : std::uint8_t {
  Computes,   // with gradients on: a forward pass, say
  Evaluates,  // with gradients off, and neither of a backward pass nor of an optimizer
  Trains,     // in a backward pass or an optimizer's step
};

struct Pin {
  BlockId id;
  std::uint32_t generation;
  std::uint64_t pinned_by_before;
  std::uint32_t recorded;   // its number in the recording, if one is made
  std::uint32_t from_tick;  // when the operator began, or the storage was born
  Access access;
  bool born_here;  // allocated within the operator: its result, or scratch
  std::uint64_t moved;
  std::uint64_t counted;  // bytes that the operator needs at once
};

struct Operator {
  const char* name;
  Work work;
  std::uint64_t serial;
  std::size_t first_pin;
  bool by_faults = false;   // what it uses in pieces is not pinned: it does not fit
  std::uint64_t bytes = 0;  // that it needs now, all at once
  std::uint64_t peak = 0;
  std::uint64_t largest = 0;  // of the storages that it was given
  std::uint64_t used = 0;     // of its operands' storages, what the operands themselves take
};

class OperatorStacks;

struct OperatorStack {
  OperatorStacks* of = nullptr;
  pthread_t thread{};
  std::vector<Operator> operators;
  std::vector<Pin> pins;
  bool makes_anew = false;  // the operator that began last makes what is to have a recipe [Note: recipes]

  std::uint64_t innermost() const { return operators.empty() ? 0 : operators.back().serial; }
};

OperatorStack& this_operator_stack();  // of the calling thread

// Those of an arena, under its mutex.
class OperatorStacks {
 public:
  void add(OperatorStack& stack) {
    stack.of = this;
    stack.thread = pthread_self();
    stacks_.push_back(&stack);
  }
  void forget(OperatorStack& stack) { std::erase(stacks_, &stack); }
  void disown() {
    for (OperatorStack* stack : stacks_) stack->of = nullptr;
  }
  bool are_in(std::uint64_t serial) const {  // some thread, now
    return std::ranges::any_of(stacks_, [&](auto* s) { return s->innermost() == serial; });
  }
  std::ptrdiff_t at_work() const {
    return std::ranges::count_if(stacks_, [](auto* s) { return !s->operators.empty(); });
  }
  // Whether the calling thread is in one; for the fault handler, which must not touch thread-local storage [I6].
  bool are_here() const {
    return std::ranges::any_of(
        stacks_, [me = pthread_self()](auto* s) { return pthread_equal(s->thread, me) != 0 && !s->operators.empty(); });
  }
  const std::vector<OperatorStack*>& all() const { return stacks_; }

 private:
  std::vector<OperatorStack*> stacks_;
};

}  // namespace ebbtide
