#include "operator_rules.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ebbtide {

namespace {

constexpr std::string_view kForeach = "aten::_foreach_";

bool overwrites(const std::string& name) {
  std::string plain = name.starts_with(kForeach) ? "aten::" + name.substr(kForeach.size()) : name;
  for (std::string_view known :
       {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_", "aten::bernoulli_"}) {
    if (plain == known) return true;
  }
  return false;
}

// Batch norms write to these, and their schemas do not say so. Where nothing is trained they read them.
bool is_written_unsaid(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

}  // namespace

const c10::FunctionSchema& schema_of(const std::string& name, const std::string& overload) {
  auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op.has_value()) throw std::invalid_argument("no such operator: " + name + "." + overload);
  return op->schema();  // lives as long as the operator's registration
}

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool touches_nothing(const c10::FunctionSchema& schema) {
  if (starts_with_any(schema.name(), {"aten::empty", "aten::new_empty", "aten::_unsafe_view"})) return true;
  if (schema.returns().empty()) return false;
  return std::ranges::all_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });  // every result is a view of an argument; one that has to copy calls an operator for it
}

bool gives_sizes(std::string_view name) { return name == "aten::resize_" || name == "aten::as_strided_"; }

bool gives_storage(std::string_view name) { return name == "aten::set_"; }

bool makes_empty(std::string_view name) { return starts_with_any(name, {"aten::empty", "aten::new_empty"}); }

bool goes_in_order(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  for (std::string_view known :
       {"aten::zeros", "aten::ones", "aten::full", "aten::rand", "aten::randn", "aten::randint", "aten::clone", "aten::_to_copy",
        "aten::resize_", "aten::index", "aten::index_select", "aten::embedding"}) {
    if (name == known) return true;
  }
  return overwrites(name) || op.hasTag(at::Tag::pointwise);
}

bool over_lists(std::string_view name) { return starts_with_any(name, {kForeach, "aten::_fused_ada", "aten::_fused_sgd"}); }

std::vector<Use> uses_of(const c10::FunctionSchema& schema, bool leaves_gradients) {
  std::vector<Use> uses;
  bool all = overwrites(schema.name());
  for (const c10::Argument& argument : schema.arguments()) {
    bool only_reads = leaves_gradients && argument.name() == "grads";
    Access access = is_written_unsaid(argument) ? Access::ReadWrite : access_of(argument);
    uses.push_back({only_reads ? Access::Read : access, all || argument.is_out()});
  }
  return uses;
}

std::uint64_t counted_bytes(std::uint64_t nbytes) { return nbytes >= kManagedBytes ? shape_of(nbytes).bytes() : 0; }

bool group_is_full(std::size_t elements, std::uint64_t bytes_with_next) { return elements > 0 && bytes_with_next > kGroupBytes; }

std::vector<std::size_t> cut_groups(const std::vector<std::vector<std::uint64_t>>& elements) {
  std::vector<std::size_t> groups;
  std::uint64_t bytes = 0;
  for (const std::vector<std::uint64_t>& storages : elements) {
    std::uint64_t own = 0;
    for (std::uint64_t nbytes : storages) own += counted_bytes(nbytes);
    bytes += own;
    if (groups.empty() || group_is_full(groups.back(), bytes)) {
      groups.push_back(0);
      bytes = own;
    }
    ++groups.back();
  }
  return groups;
}

}  // namespace ebbtide
