// A global RecordFunction callback: no Python, no references that keep tensors alive, the same kernels as without it.
#include "recorder.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator.hpp"
#include "operands.hpp"

namespace ebbtide {

namespace {

// What an operator's arguments mean for memory.
enum class Treatment {
  Nothing,   // it reads no bytes: it makes a view, or an empty tensor like another
  Operands,  // it needs its arguments
  Elements,  // it works through lists, one element (or group) after another: what it needs are theirs
};

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  for (std::string_view prefix : prefixes) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// Whether the operator is a kernel of its own on the CPU, or composed of others.
Work work_of(const at::RecordFunction& function) {
  auto op = c10::Dispatcher::singleton().findOp({function.name(), function.overload_name()});
  return op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ? Work::Itself : Work::HandsOn;
}

Treatment treatment_of(std::string_view name, const c10::FunctionSchema* schema) {
  if (starts_with_any(name, {"aten::new_"}) || name.ends_with("_like")) return Treatment::Nothing;
  // On the CPU a _foreach_ operator calls the plain one per tensor; list_operators.cpp does the same for _fused_.
  if (starts_with_any(name, {"aten::_foreach_", "aten::_fused_ada", "aten::_fused_sgd"})) return Treatment::Elements;
  if (schema == nullptr || schema->returns().empty()) return Treatment::Operands;
  for (const c10::Argument& result : schema->returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return Treatment::Operands;
  }
  return Treatment::Nothing;  // every result is a view of an argument; one that has to copy calls an operator for it
}

struct Known {
  Treatment treatment = Treatment::Operands;
  Work work = Work::HandsOn;
};

// Known by the address of the name, which belongs to the operator's registration: one per overload.
Known what_is_known(const at::RecordFunction& function) {
  static thread_local std::unordered_map<const char*, Known> known;
  auto [entry, added] = known.try_emplace(function.name());
  if (added) {
    std::optional<c10::FunctionSchema> schema = function.operator_schema();
    entry->second = {treatment_of(function.name(), schema.has_value() ? &*schema : nullptr), work_of(function)};
  }
  return entry->second;
}

struct Entered : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  Arena& arena = *the_arena();
  if (arena.in_child()) return nullptr;
  auto [what, work] = what_is_known(function);
  if (what == Treatment::Nothing) return nullptr;
  static thread_local std::vector<const void*> operands;
  operands.clear();
  if (what == Treatment::Operands) {
    for (const c10::IValue& input : function.inputs()) collect_operands(input, operands);
  }
  arena.enter(function.name(), operands, work);
  return std::make_unique<Entered>();
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr && !the_arena()->in_child()) the_arena()->leave();
}

}  // namespace

void install_recorder() {
  static bool installed = false;
  if (installed) return;
  installed = true;
  at::addGlobalCallback(
      at::RecordFunctionCallback(begin, end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

}  // namespace ebbtide
