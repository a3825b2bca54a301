// Says what an operator does with its arguments, by its name and schema. The recorder of fake tensors uses the same rules.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <string_view>
#include <vector>

#include "operands.hpp"

namespace ebbtide {

// Returns the schema of a registered operator; throws std::invalid_argument for another.
const c10::FunctionSchema& schema_of(const std::string& name, const std::string& overload);

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes);

// Says whether the operator makes a view, or memory that nobody has written.
bool touches_nothing(const c10::FunctionSchema& schema);

// Says whether it gives its argument other sizes, and writes to no memory. oneDNN's convolutions call such operators.
bool gives_sizes(std::string_view name);

// Says whether it gives its argument another storage. It looks at no bytes of either.
bool gives_storage(std::string_view name);

// Says whether the operator does the same to each element of its lists. On the CPU a _foreach_ operator calls the plain one per
// tensor, and list_operators.cpp cuts a _fused_ one into groups.
bool over_lists(std::string_view name);

// Says whether it makes memory that nobody has written. Whoever wants something there writes it later.
bool makes_empty(std::string_view name);

// Says whether it goes through the elements of its operands and its result once, each thread from its first one to its last. Then
// it does not need all of them at once [Note: pieces]. Gathers do so where that matters [gathers.cpp].
bool goes_in_order(const c10::OperatorHandle& op);

// Returns the use of each argument. Fused optimizers declare that they write to gradients, but do so only where they unscale
// them. `leaves_gradients`: this call does not. A _foreach_ operator overwrites what the plain one overwrites.
std::vector<Use> uses_of(const c10::FunctionSchema& schema, bool leaves_gradients);

// [Note: groups]  Small elements of a fused optimizer's lists share a group of at most kGroupBytes. This holds for every budget,
// and without an arena: a step's ticks must not depend on it. So a storage counts with its pages if an arena would manage it, and
// else not at all.
inline constexpr std::uint64_t kGroupBytes = std::uint64_t{256} << 10;
inline constexpr std::uint64_t kManagedBytes = std::uint64_t{64} << 10;  // the smallest, unless an arena is told otherwise

std::uint64_t counted_bytes(std::uint64_t nbytes);

// Says whether a group of so many elements ends before the next one, with which it would have so many bytes.
bool group_is_full(std::size_t elements, std::uint64_t bytes_with_next);

// Returns the number of elements in each group. An element has the sizes of its storages.
std::vector<std::size_t> cut_groups(const std::vector<std::vector<std::uint64_t>>& elements);

}  // namespace ebbtide
