// A global RecordFunction callback: no Python, no references that keep tensors alive, the same kernels as without it.
#include "recorder.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator.hpp"
#include "lent.hpp"
#include "operands.hpp"

namespace ebbtide {

namespace {

// What an operator does with each argument; nothing at all where it touches no bytes itself.
struct Treatment {
  bool passed_over = false;
  bool lends = false;            // others go on with its arguments when it has returned [lent.hpp]
  std::size_t async_op = ~std::size_t{0};  // the argument that says whether its caller waits for them
  std::vector<Access> accesses;  // by argument; those beyond are read and written, for all we know
};

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  for (std::string_view prefix : prefixes) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// Operators that touch no bytes: they make views or empty tensors, or are composed of operators that come here too.
// (One that did touch bytes would still be right: its accesses fault.)
bool passes_over(std::string_view name, const c10::OperatorHandle& op) {
  if (starts_with_any(name, {"aten::new_", "aten::empty"}) || name.ends_with("_like")) return true;
  // On the CPU a _foreach_ operator calls the plain one per tensor; list_operators.cpp does the same for _fused_.
  if (starts_with_any(name, {"aten::_foreach_", "aten::_fused_ada", "aten::_fused_sgd"})) return true;
  bool own_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (!own_kernel && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return true;
  if (op.schema().returns().empty()) return false;
  for (const c10::Argument& result : op.schema().returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
  }
  return true;  // every result is a view of an argument; one that has to copy calls an operator for it
}

Treatment treatment_of(const at::RecordFunction& function) {
  auto op = c10::Dispatcher::singleton().findSchema({function.name(), function.overload_name()});
  if (!op.has_value()) return {.passed_over = true, .accesses = {}};  // a label, not an operator
  Treatment treatment;
  treatment.passed_over = passes_over(function.name(), *op);
  treatment.lends = starts_with_any(function.name(), {"c10d::"});
  for (const c10::Argument& argument : op->schema().arguments()) {
    if (argument.name() == "async_op") treatment.async_op = treatment.accesses.size();
    treatment.accesses.push_back(access_of(argument));
  }
  return treatment;
}

// Known by the address of the name, which belongs to the operator's registration: one per overload. Labels, such as
// autograd's, have passing addresses.
const Treatment& known_treatment(const at::RecordFunction& function) {
  static const Treatment label{.passed_over = true, .accesses = {}};
  static thread_local std::unordered_map<const char*, Treatment> known;
  if (starts_with_any(function.name(), {"autograd::", "torch::"})) return label;
  auto found = known.find(function.name());
  if (found == known.end()) found = known.emplace(function.name(), treatment_of(function)).first;
  return found->second;
}

struct Entered : at::ObserverContext {};

// How many operators the calling thread is in.
thread_local int depth = 0;

// While a step is recorded, what runs in the backward pass belongs to the module whose forward pass made its node:
// both carry the node's sequence number. The operator that makes a node is the last one before the number changes.
std::unordered_map<std::int64_t, std::uint32_t>& module_of_node() {
  static thread_local std::unordered_map<std::int64_t, std::uint32_t> modules;
  return modules;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  Arena& arena = *the_arena();
  if (arena.in_child()) return nullptr;
  const Treatment& treatment = known_treatment(function);
  if (treatment.passed_over) return nullptr;
  if (depth == 0) take_back_waited();
  static thread_local std::vector<Operand> operands;
  operands.clear();
  auto inputs = function.inputs();
  bool waited_for = treatment.async_op < inputs.size() && !inputs[treatment.async_op].toBool();
  std::size_t i = 0;
  for (const c10::IValue& input : inputs) {
    collect_operands(input, i < treatment.accesses.size() ? treatment.accesses[i] : Access::ReadWrite, operands);
    if (treatment.lends) lend(input, waited_for);
    ++i;
  }
  if (arena.records() && function.seqNr() >= 0) {
    if (std::uint32_t module = arena.module(); module != 0) module_of_node()[function.seqNr()] = module;
  }
  arena.enter(function.name(), operands, Work::Itself);
  ++depth;
  return std::make_unique<Entered>();
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  --depth;
  if (!the_arena()->in_child()) the_arena()->leave();
}

struct InModule : at::ObserverContext {
  explicit InModule(std::uint32_t before) : before(before) {}
  std::uint32_t before;
};

std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& function) {
  if (!the_arena()->records() || the_arena()->in_child()) return nullptr;
  auto found = module_of_node().find(function.seqNr());
  if (found == module_of_node().end()) return nullptr;
  return std::make_unique<InModule>(the_arena()->enter_module(found->second));
}

void end_node(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) the_arena()->enter_module(static_cast<InModule*>(context)->before);
}

}  // namespace

void forget_nodes() { module_of_node().clear(); }

void install_recorder() {
  static bool installed = false;
  if (installed) return;
  installed = true;
  at::addGlobalCallback(
      at::RecordFunctionCallback(begin, end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  at::addGlobalCallback(at::RecordFunctionCallback(begin_node, end_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

}  // namespace ebbtide
