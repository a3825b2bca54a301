// Fused optimizers work through lists as long as the model in one operator, so all their state would have to be there
// at once. They are served group by group: the same kernel on consecutive pieces of the lists, which computes the same
// bits, because every element is updated on its own.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>
#include <memory>
#include <optional>
#include <span>

#include "operands.hpp"
#include "operator_rules.hpp"
#include "recorder.hpp"

namespace ebbtide {

namespace {

std::unordered_map<c10::OperatorName, c10::SafeKernelFunction>& originals() {
  static auto* kernels = new std::unordered_map<c10::OperatorName, c10::SafeKernelFunction>;
  return *kernels;
}

// The length of all lists but those that are empty (of what this optimizer does without); 0 where they differ, which the
// kernel refuses, or there are none.
std::size_t common_length(at::ArrayRef<c10::IValue> arguments) {
  std::size_t common = 0;
  for (const c10::IValue& argument : arguments) {
    std::size_t length = argument.isTensorList() ? argument.toListRef().size() : 0;
    if (length == 0 || length == common) continue;
    if (common != 0) return 0;
    common = length;
  }
  return common;
}

bool is_none(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments, const char* name) {
  std::optional<int> index = schema.argumentIndexWithName(name);
  return index.has_value() && arguments[static_cast<std::size_t>(*index)].isNone();
}

// The storages that element `i` of the lists needs.
void collect_element(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments, std::size_t i, std::size_t length,
                     std::vector<Operand>& into) {
  std::vector<Use> uses = uses_of(schema, is_none(schema, arguments, "grad_scale"));
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    if (!arguments[a].isTensorList() || arguments[a].toListRef().size() != length) continue;
    collect_operands(arguments[a].toListRef()[i], uses[a], into);
  }
}

c10::IValue piece(const c10::IValue& argument, std::size_t begin, std::size_t end, std::size_t length) {
  if (!argument.isTensorList() || argument.toListRef().size() != length) return argument;
  c10::List<at::Tensor> part;
  part.reserve(end - begin);
  for (std::size_t i = begin; i < end; ++i) part.push_back(argument.toListRef()[i].toTensor());
  return part;
}

struct InOperator {
  InOperator(const char* name, const std::vector<Operand>& operands) {
    the_watch()->enter(name, operands, Work::InGroups, pass_now());
    if (the_watch()->tape().records()) the_watch()->tape().describe("", phase_now());
  }
  ~InOperator() { the_watch()->exit(); }
};

// Elements [begin, end) of the lists, and their storages.
struct Group {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<Operand> operands;
};

// As many elements from `begin` as fit a group, and at least one.
Group group_from(std::size_t begin, const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments, std::size_t length) {
  Group group{begin, begin, {}};
  for (std::uint64_t bytes = 0; group.end < length;) {
    std::size_t before = group.operands.size();
    collect_element(schema, arguments, group.end, length, group.operands);
    bytes += the_watch()->note_need(schema.name().c_str(), std::span(group.operands).subspan(before));
    if (group_is_full(group.end - begin, bytes)) {
      group.operands.resize(before);
      break;
    }
    ++group.end;
  }
  return group;
}

void by_groups(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::SafeKernelFunction& original = originals().at(op.operator_name());
  std::size_t count = op.schema().arguments().size();
  auto arguments = torch::jit::last(*stack, count);
  std::size_t length = common_length(arguments);
  if (length == 0 || !the_watch()->on()) return original.callBoxed(op, keys, stack);
  TORCH_INTERNAL_ASSERT(op.schema().returns().empty());
  const char* name = op.schema().name().c_str();
  for (Group group = group_from(0, op.schema(), arguments, length); group.begin < length;) {
    InOperator in_operator(name, group.operands);
    Group next = group_from(group.end, op.schema(), arguments, length);
    the_watch()->prefetch(next.operands);  // on its way while this one computes
    torch::jit::Stack pieces;
    for (const c10::IValue& argument : arguments) pieces.push_back(piece(argument, group.begin, group.end, length));
    original.callBoxed(op, keys, &pieces);
    group = std::move(next);
  }
  torch::jit::drop(*stack, count);
}

// torch warns that a kernel is overridden, once; this one is meant.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void install_list_operators() {
  static std::unique_ptr<torch::Library> library;
  if (library != nullptr) return;
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard guard(&silence);
  for (const char* name : {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"}) {
    for (const char* overload : {"", "tensor_lr"}) {
      auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, overload});
      if (!op.has_value() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
      originals().emplace(op->operator_name(), op->getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
      std::string full = *overload == '\0' ? name : std::string(name) + "." + overload;
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&by_groups>());
    }
  }
}

}  // namespace ebbtide
