// What an operator does with its arguments, by its name and its schema. The recorder of fake tensors asks the same rules.
#pragma once

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

// By argument. Fused optimizers declare that they write to gradients, which they do only where they unscale them:
// `leaves_gradients` says that this call does not. A _foreach_ operator overwrites what the plain one overwrites.
std::vector<Use> uses_of(const c10::FunctionSchema& schema, bool leaves_gradients);

}  // namespace ebbtide
