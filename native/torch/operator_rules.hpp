// What an operator does with its arguments, by its name and its schema. The recorder of fake tensors asks the same rules.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

#include "operands.hpp"

namespace ebbtide {

// Of an operator that is registered; throws std::invalid_argument for another.
const c10::FunctionSchema& schema_of(const std::string& name, const std::string& overload);

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes);

// The operator makes a view, or memory that nobody has written.
bool touches_nothing(const c10::FunctionSchema& schema);

// The operator does the same to each element of its lists: on the CPU a _foreach_ operator calls the plain one per
// tensor, and list_operators.cpp cuts a _fused_ one into groups.
bool over_lists(std::string_view name);

// It makes memory that nobody has written, and whoever wants something there writes it later.
bool makes_empty(std::string_view name);

// It goes through the elements of its operands and its result once, each thread from its first one to its last, so that it
// does not need all of them at once [Note: pieces]. Gathers do where that matters [gathers.cpp].
bool goes_in_order(const c10::OperatorHandle& op);

// By argument. Fused optimizers declare that they write to gradients, which they do only where they unscale them:
// `leaves_gradients` says that this call does not. A _foreach_ operator overwrites what the plain one overwrites.
std::vector<Use> uses_of(const c10::FunctionSchema& schema, bool leaves_gradients);

// [Note: groups]  Small elements of a fused optimizer's lists share a group of so many bytes at most, whatever the budget
// and also without an arena: a step's ticks must not depend on it. So a storage counts with its pages if an arena would
// manage it, and else not at all.
inline constexpr std::uint64_t kGroupBytes = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kManagedBytes = std::uint64_t{64} << 10;  // the least, unless an arena is told otherwise

std::uint64_t counted_bytes(std::uint64_t nbytes);

// Whether a group of so many elements ends before one with which it would have so many bytes.
bool group_is_full(std::size_t elements, std::uint64_t bytes_with_next);

// Of elements, each with the sizes of its storages: how many make each group.
std::vector<std::size_t> cut_groups(const std::vector<std::vector<std::uint64_t>>& elements);

}  // namespace ebbtide
