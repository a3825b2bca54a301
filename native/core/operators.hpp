// The operators a thread is in, innermost last, with the storages each one holds.
//
// Only the innermost operator's operands are out of reach for evictions: an outer operator has handed its work on and
// touches nothing until the inner one returns, so its operands leave last, but they can (and come back by demand).
#pragma once

#include <cstdint>
#include <vector>

#include "types.hpp"

namespace ebbtide {

class Arena;

// How an operator's operands bound the smallest possible budget.
enum class Work : std::uint8_t {
  Itself,   // it has a kernel: it needs all of them at once
  HandsOn,  // it is composed of others: it needs them only if it turns out to call none
  InGroups,  // a piece of a list, cut to fit: Arena::note_need says what one element needs
};

struct Pin {
  BlockId id;
  std::uint32_t generation;
  std::uint64_t pinned_by_before;
};

struct Operator {
  const char* name;
  Work work;
  std::uint64_t serial;
  std::size_t first_pin;
  std::uint64_t bytes = 0;   // held for it now
  std::uint64_t peak = 0;
  bool handed_on = false;    // an inner operator ran
};

struct OperatorStack {
  Arena* arena = nullptr;
  std::vector<Operator> operators;
  std::vector<Pin> pins;

  std::uint64_t innermost() const { return operators.empty() ? 0 : operators.back().serial; }
};

}  // namespace ebbtide
