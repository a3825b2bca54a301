// A global RecordFunction callback: no Python, no references that keep tensors alive, the same kernels as without it.
#include "recorder.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator.hpp"
#include "operands.hpp"

namespace ebbtide {

namespace {

// What an operator does with each argument; nothing at all where it touches no bytes itself.
struct Treatment {
  bool passed_over = false;
  std::vector<Use> uses;  // by argument; those beyond are read and written, for all we know
  std::size_t positional = 0;  // so many of them have no name in a call
};

bool is_any(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  for (std::string_view prefix : prefixes) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// Operators that touch no bytes: they make views (_unsafe_view, too) or empty tensors, or are composed of operators that come here too.
// (One that did touch bytes would still be right: its accesses fault.)
bool passes_over(std::string_view name, const c10::OperatorHandle& op) {
  if (starts_with_any(name, {"aten::new_", "aten::empty", "aten::_unsafe_view"}) || name.ends_with("_like")) return true;
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
  if (!op.has_value()) return {.passed_over = true, .uses = {}};  // a label, not an operator
  Treatment treatment{.passed_over = passes_over(function.name(), *op), .uses = {}};
  bool overwrites = is_any(function.name(), {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_",
                                             "aten::random_", "aten::bernoulli_"});
  for (const c10::Argument& argument : op->schema().arguments()) {
    treatment.uses.push_back({access_of(argument), overwrites || argument.is_out()});
    if (!argument.kwarg_only()) ++treatment.positional;
  }
  return treatment;
}

// An argument as JSON: a tensor is its shape, a number is itself, whatever else is null. For counting FLOPs.
void describe(const c10::IValue& value, std::string& text) {
  auto list = [&text](const auto& values) {
    text += '[';
    for (const auto& number : values) (text += std::to_string(static_cast<std::int64_t>(number))) += ',';
    text.back() == ',' ? void(text.back() = ']') : void(text += ']');
  };
  if (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_nested()) {
    list(value.toTensor().sizes());
  } else if (value.isInt()) {
    text += std::to_string(value.toInt());
  } else if (value.isBool()) {
    text += value.toBool() ? "true" : "false";
  } else if (value.isIntList()) {
    list(value.toIntVector());
  } else if (value.isBoolList()) {
    list(value.toBoolList().vec());
  } else {
    text += "null";
  }
}

// Known by the address of the name, which belongs to the operator's registration: one per overload. Labels, such as
// autograd's, have passing addresses.
const Treatment& known_treatment(const at::RecordFunction& function) {
  static const Treatment label{.passed_over = true, .uses = {}};
  static thread_local std::unordered_map<const char*, Treatment> known;
  if (starts_with_any(function.name(), {"autograd::", "torch::"})) return label;
  auto found = known.find(function.name());
  if (found == known.end()) found = known.emplace(function.name(), treatment_of(function)).first;
  return found->second;
}

struct Entered : at::ObserverContext {
  std::uint32_t module_before = 0;
  bool in_module_of_node = false;
};

at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
thread_local bool in_optimizer = false;

// While a step is recorded, what runs in the backward pass belongs to the module whose forward pass made its node:
// both carry the node's sequence number. The operator that makes a node is the last one before the number changes.
// A forward pass within the backward pass (checkpointing) goes before that: it enters its modules itself.
std::unordered_map<std::int64_t, std::uint32_t>& module_of_node() {
  static thread_local std::unordered_map<std::int64_t, std::uint32_t> modules;
  return modules;
}

std::uint32_t module_of_current_node() {
  if (torch::autograd::get_current_graph_task_id() == -1) return 0;
  auto node = torch::autograd::get_current_node();
  if (!node) return 0;
  auto found = module_of_node().find(static_cast<std::int64_t>(node->sequence_nr()));
  return found == module_of_node().end() ? 0 : found->second;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  Watch& watch = *the_watch();
  if (!watch.on()) return nullptr;
  const Treatment& treatment = known_treatment(function);
  if (treatment.passed_over) return nullptr;
  static thread_local std::vector<Operand> operands;
  operands.clear();
  std::size_t i = 0;
  for (const c10::IValue& input : function.inputs()) {
    collect_operands(input, i < treatment.uses.size() ? treatment.uses[i] : Use{}, operands);
    ++i;
  }
  auto entered = std::make_unique<Entered>();
  if (watch.records()) {
    std::uint32_t module = watch.module();
    if (module != 0 && function.seqNr() >= 0) module_of_node()[function.seqNr()] = module;
    if (std::uint32_t of_node = module == 0 ? module_of_current_node() : 0; of_node != 0) {
      entered->module_before = watch.enter_module(of_node);
      entered->in_module_of_node = true;
    }
  }
  watch.enter(function.name(), operands, Work::Itself);
  if (watch.records()) {
    static thread_local std::string arguments;
    arguments = "[";
    auto inputs = function.inputs();
    for (const c10::IValue& input : inputs.slice(0, std::min(inputs.size(), treatment.positional))) {
      describe(input, arguments += arguments.size() > 1 ? "," : "");
    }
    watch.describe((arguments += "]").c_str(), phase_now());
  }
  return entered;
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  the_watch()->leave();
  auto* entered = static_cast<Entered*>(context);
  if (entered->in_module_of_node) the_watch()->enter_module(entered->module_before);
}

}  // namespace

void forget_nodes() { module_of_node().clear(); }

void enter_optimizer(bool enters) { in_optimizer = enters; }

Phase phase_now() {
  if (torch::autograd::get_current_graph_task_id() != -1) return Phase::Backward;
  return in_optimizer ? Phase::Optimizer : Phase::Other;
}

void install_recorder() {
  if (callback != at::INVALID_CALLBACK_HANDLE) return;
  callback = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void remove_recorder() {
  if (callback == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(callback);
  callback = at::INVALID_CALLBACK_HANDLE;
}

}  // namespace ebbtide
