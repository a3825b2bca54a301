// Fused optimizers work through lists as long as the model in one operator, so all their state would have to be there
// at once. They are served group by group: the same kernel on consecutive pieces of the lists, which computes the same
// bits, because every element is updated on its own.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>
#include <memory>
#include <optional>
#include <span>

#include "operands.hpp"
#include "operator_rules.hpp"
#include "recipes.hpp"
#include "recorder.hpp"
#include "repeatable.hpp"
#include "silence.hpp"

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

// Cuts a part out of a list with something for each element: tensors, or numbers.
c10::IValue piece(const c10::IValue& argument, std::size_t begin, std::size_t end, std::size_t length) {
  if (!argument.isList() || argument.toListRef().size() != length) return argument;
  c10::List<c10::IValue> all = argument.toList();
  c10::impl::GenericList part(all.elementType());
  part.reserve(end - begin);
  for (std::size_t i = begin; i < end; ++i) part.push_back(all.get(i));
  return part;
}

struct InOperator {
  InOperator(const char* name, const std::vector<Operand>& operands, Work work) {
    the_watch()->enter(name, operands, work, pass_now());
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

// Takes as many elements from `begin` as fit a group, and at least one.
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
  if (any_recipes()) prepare_for(arguments, uses_of(op.schema(), is_none(op.schema(), arguments, "grad_scale")), false, false);
  const char* name = op.schema().name().c_str();
  for (Group group = group_from(0, op.schema(), arguments, length); group.begin < length;) {
    InOperator in_operator(name, group.operands, Work::InGroups);
    Group next = group_from(group.end, op.schema(), arguments, length);
    the_watch()->prefetch(next.operands);  // on its way while this one computes
    torch::jit::Stack pieces;
    for (const c10::IValue& argument : arguments) pieces.push_back(piece(argument, group.begin, group.end, length));
    original.callBoxed(op, keys, &pieces);
    group = std::move(next);
  }
  torch::jit::drop(*stack, count);
}

}  // namespace

bool is_served_by_groups(const c10::OperatorName& name) { return originals().contains(name); }

void install_list_operators(c10::DispatchKey key) {
  static std::unique_ptr<torch::Library> library;
  if (library != nullptr) return;
  library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  Silence silence;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.overload_name.ends_with("out")) continue;  // each is made of another of them
    auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !op->hasComputedKernelForDispatchKey(key) || !op->schema().returns().empty()) continue;
    if (!starts_with_any(name.name, {"aten::_fused_ada", "aten::_fused_sgd"})) continue;
    if (key == c10::DispatchKey::CPU && !has_known_kernels(*op)) continue;  // it is the script's, and is called as it is
    originals().emplace(name, op->getComputedKernelForDispatchKey(key));
    std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&by_groups>());
  }
}

}  // namespace ebbtide
