// A global RecordFunction callback: no Python, no references that keep tensors alive, the same kernels as without it.
#include "recorder.hpp"

#include <ATen/CPUFunctions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../core/fault.hpp"
#include "../core/per_thread.hpp"
#include "allocator.hpp"
#include "arithmetic.hpp"
#include "collective_pins.hpp"
#include "deferred.hpp"
#include "device_memory.hpp"
#include "lines.hpp"
#include "modules.hpp"
#include "nodes.hpp"
#include "operands.hpp"
#include "operator_rules.hpp"
#include "recipe_memory.hpp"
#include "recipes.hpp"
#include "repeatable.hpp"
#include "standstill.hpp"

namespace ebbtide {

namespace {

// The use that an operator makes of each argument; none where it touches no bytes itself.
struct Treatment {
  bool passed_over = false;
  bool composed = false;  // passed over, and others that it calls are seen
  bool makes_empty = false;
  bool looks_at_bytes = true;
  bool repeatable = false;           // its result depends on its arguments alone
  bool repeatable_in_place = false;  // so does what it makes of its first argument
  bool repeats_within = false;       // an operator that calls it is no more than its kernel for that
  std::uint64_t version = 0;         // of the operators, as it knows them
  Work work = Work::Itself;
  std::vector<Use> uses;  // by argument; those beyond are read and written, for all we know
  std::optional<c10::OperatorHandle> op;
  const std::vector<c10::Argument>* schema = nullptr;  // lives as long as the operator's registration
  bool gives_away = false;     // for all that is known it writes to all that it reads, or has others do so
  bool pins = false;           // others go on with its arguments when it has returned [collective_pins.hpp]
  std::size_t async_op = ~std::size_t{0};  // the argument that says whether its caller waits for them
};

// Operators that touch no bytes, or are composed of operators that come here too (zeros_like: empty_like and zero_).
// (One that did touch bytes would still be right: its accesses fault.)
// On an accelerator an operator over lists does all of it itself, and empty() makes a storage whose stream is to be known.
bool passes_over(std::string_view name, const c10::OperatorHandle& op) {
  const DeviceMemory* device = the_device_memory();
  if (is_served_by_groups(op.operator_name())) return true;
  if (device == nullptr ? touches_nothing(op.schema()) || over_lists(name) : touches_nothing(op.schema()) && !makes_empty(name))
    return true;
  if (starts_with_any(name, {"aten::new_"}) || name.ends_with("_like")) return true;
  return !op.hasKernelForDispatchKey(device == nullptr ? c10::DispatchKey::CPU : device->dispatch_key()) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

void look_what_repeats(Treatment& treatment, const char* name) {
  const c10::OperatorName& op = treatment.op->operator_name();
  bool fresh = is_repeatable(op), in_place = is_repeatable_in_place(op), known = fresh || in_place || is_repeatable_out(op);
  bool repeats = known && has_known_kernels(*treatment.op);
  treatment.repeatable = repeats && fresh;
  treatment.repeatable_in_place = repeats && in_place;
  treatment.repeats_within = repeats || treatment.makes_empty || gives_sizes(name);
}

Treatment treatment_of(const at::RecordFunction& function) {
  std::uint64_t version = version_of_operators();
  auto op = c10::Dispatcher::singleton().findSchema({function.name(), function.overload_name()});
  if (!op.has_value()) return {.passed_over = true, .version = version, .uses = {}, .op = {}};  // a label, not an operator
  Treatment treatment{.passed_over = passes_over(function.name(), *op), .version = version, .uses = {}, .op = {}};
  treatment.composed = treatment.passed_over && !touches_nothing(op->schema());
  treatment.makes_empty = makes_empty(function.name());
  treatment.looks_at_bytes = the_device_memory() != nullptr || !gives_storage(function.name());
  treatment.work = goes_in_order(*op) ? Work::InOrder : Work::Itself;
  treatment.op = op;
  look_what_repeats(treatment, function.name());
  if (treatment.passed_over) treatment.repeats_within = has_known_kernels(*op);
  treatment.schema = &op->schema().arguments();
  // A clone that is made at the first write has its original's address until then.
  treatment.gives_away = starts_with_any(function.name(), {"aten::_lazy_clone"}) ||
                         (the_device_memory() != nullptr && (!starts_with_any(function.name(), {"aten::"}) ||
                                                             starts_with_any(function.name(), {"aten::record_stream"})));
  treatment.pins = starts_with_any(function.name(), {"c10d::"});
  treatment.uses = uses_of(op->schema(), false);
  if (auto async_op = op->schema().argumentIndexWithName("async_op")) treatment.async_op = static_cast<std::size_t>(*async_op);
  return treatment;
}

// A call as JSON, for counting FLOPs and for calling it again: {"overload", "args", "kwargs"}, arguments in the order of
// the schema. A tensor is an object: "shape", "dtype"; "strides" unless contiguous; "bytes" of its storage unless it
// fills it; "same" as which earlier tensor of the call if it shares that one's storage; "layout" or "device" where other
// than strided or CPU. A list is a list, a floating-point number without JSON a {"float"}, what cannot be told an
// {"other"}, none null.
class Description {
 public:
  const char* of(const char* overload, const std::vector<c10::Argument>& schema, at::ArrayRef<const c10::IValue> inputs) {
    text_ = "{\"overload\":\"";
    (text_ += overload) += "\",\"args\":[";
    storages_.clear();
    bool named = false, first = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!named && i < schema.size() && schema[i].kwarg_only()) {
        text_ += "],\"kwargs\":{";
        named = first = true;
      }
      if (!std::exchange(first, false)) text_ += ',';
      if (named) ((text_ += '"') += schema[i].name()) += "\":";
      value(inputs[i]);
    }
    text_ += named ? "}}" : "],\"kwargs\":{}}";
    return text_.c_str();
  }

 private:
  template <typename Values>
  void numbers(const Values& values) {
    char comma = '[';
    for (const auto& number : values) {
      (text_ += comma) += std::to_string(static_cast<std::int64_t>(number));
      comma = ',';
    }
    text_ += comma == '[' ? "[]" : "]";
  }

  void value(const c10::IValue& v) {
    if (v.isNone() || (v.isTensor() && !v.toTensor().defined())) {
      text_ += "null";
    } else if (v.isTensor()) {
      tensor(v.toTensor());
    } else if (v.isInt()) {
      text_ += std::to_string(v.toInt());
    } else if (v.isBool()) {
      text_ += v.toBool() ? "true" : "false";
    } else if (v.isDouble()) {
      real(v.toDouble());
    } else if (v.isString() &&
               std::ranges::all_of(v.toStringRef(), [](unsigned char c) { return std::isalnum(c) || c == '_'; })) {
      ((text_ += '"') += v.toStringRef()) += '"';
    } else if (v.isList()) {
      char comma = '[';
      for (const c10::IValue& element : v.toListRef()) {
        text_ += std::exchange(comma, ',');
        value(element);
      }
      text_ += comma == '[' ? "[]" : "]";
    } else {
      ((text_ += "{\"other\":\"") += v.tagKind()) += "\"}";
    }
  }

  void real(double number) {
    std::array<char, 32> digits{};
    auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    std::string_view shortest(digits.data(), static_cast<std::size_t>(end - digits.data()));
    if (!std::isfinite(number)) {
      ((text_ += "{\"float\":\"") += shortest) += "\"}";
    } else {
      text_ += shortest;
      if (shortest.find_first_of(".e") == std::string_view::npos) text_ += ".0";
    }
  }

  // A class of the script's may say itself what sizes and layout are. It is not asked.
  void tensor(const at::Tensor& t) {
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    if (t.is_nested() || impl.is_python_dispatch() || impl.has_symbolic_sizes_strides()) {
      text_ += "{\"other\":\"NestedTensor\"}";
      return;
    }
    text_ += "{\"shape\":";
    numbers(t.sizes());
    ((text_ += ",\"dtype\":\"") += dtype_name(t.scalar_type())) += '"';
    if (t.layout() != c10::kStrided) {
      text_ += ",\"layout\":\"other\"}";
      return;
    }
    if (!t.is_cpu()) text_ += ",\"device\":\"other\"";
    if (!t.is_contiguous()) {
      text_ += ",\"strides\":";
      numbers(t.strides());
    }
    if (const c10::StorageImpl* storage = storage_behind(t)) {
      if (storage->nbytes() != static_cast<std::size_t>(t.numel()) * t.itemsize()) {
        (text_ += ",\"bytes\":") += std::to_string(storage->nbytes());
      }
      auto known = std::ranges::find(storages_, storage);
      if (known != storages_.end()) (text_ += ",\"same\":") += std::to_string(known - storages_.begin());
      storages_.push_back(storage);
    } else {
      storages_.push_back(nullptr);
    }
    text_ += '}';
  }

  const std::string& dtype_name(c10::ScalarType type) {
    std::string& name = dtype_names_[static_cast<int>(type)];
    if (name.empty()) name = c10::getDtypeNames(type).first;
    return name;
  }

  std::string text_;
  std::unordered_map<int, std::string> dtype_names_;
  std::vector<const c10::StorageImpl*> storages_;  // of the call's tensors, in order; nothing is read through them
};

struct Tables {
  std::unordered_map<const char*, Treatment> known;  // by the address of an operator's name
  std::vector<Operand> operands;                     // of the operator that begins
  Description description;
};

// Known by the address of the name, which belongs to the operator's registration: one per overload. Where one has gone, another
// may have its address. Labels, such as autograd's, have passing addresses.
const Treatment& known_treatment(const at::RecordFunction& function) {
  static const Treatment label{.passed_over = true, .uses = {}, .op = {}};
  if (starts_with_any(function.name(), {"autograd::", "torch::"})) return label;
  auto& known = of_this_thread<Tables>().known;
  auto found = known.find(function.name());
  if (found == known.end()) found = known.emplace(function.name(), Treatment()).first;
  Treatment& treatment = found->second;
  if (treatment.version != version_of_operators()) treatment = treatment_of(function);
  return treatment;
}

at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE, script_callback = at::INVALID_CALLBACK_HANDLE;
thread_local bool in_optimizer = false;
thread_local int optimizer_task = -1;  // the backward pass that the optimizer was entered in: an update made there, or none

// The number of operators that the calling thread is in; and of those whose module is known.
thread_local int depth = 0, named = 0;

// What an operator has entered. It exits as the operator ends, and where begin() fails.
struct Entered : at::ObserverContext {
  ~Entered() override { exit(); }
  void exit() {
    if (std::exchange(in_watch, false)) {
      --depth;
      call = nullptr;  // keeps its recipes while nobody else can move what it made
      the_watch()->exit();
    }
    if (std::exchange(in_collective, false)) exit_collective();
    if (std::exchange(in_module, false)) {
      --named;
      the_watch()->tape().enter_module(module_before);
    }
  }

  std::unique_ptr<KeptCall> call;
  std::uint32_t module_before = 0;
  bool in_watch = false;
  bool in_module = false;
  bool in_collective = false;
  bool makes_empty = false;
};

// No recipe is made in one. On an accelerator it would hold gradients, and autograd adds to a gradient in place where nobody else
// holds its storage; a sum elsewhere has the same values, but may have other strides, and kernels go by these.
bool in_backward_pass() { return torch::autograd::get_current_graph_task_id() != -1; }

// The module that calls an operator; in the backward pass, the one that made the node which does. 0: none is known. Within an
// operator no module is called. A node that runs a forward pass anew (checkpointing) builds a graph in it.
std::uint32_t module_of(const at::RecordFunction& function, Tape& tape) {
  std::uint32_t module = named > 0 ? tape.module() : 0;
  if (named == 0 && (!in_backward_pass() || at::GradMode::is_enabled())) {
    const std::string path = module_here();
    module = path.empty() ? 0 : tape.module_named(path.c_str());
  }
  if (module == 0) return module_of_current_node();
  if (function.seqNr() >= 0) note_module_of_node(function.seqNr(), module);
  return module;
}

void enter_module_of(const at::RecordFunction& function, Entered& entered) {
  Tape& tape = the_watch()->tape();
  if (!names_modules() || !tape.records() || !tape.records_here()) return;
  entered.module_before = tape.enter_module(module_of(function, tape));
  entered.in_module = true;
  ++named;
}

// A kernel's first write to a clean storage faults, so the handler has to be there: a library may have taken the signal since the
// governor looked, and this thread may block it. Workers of data loaders, forked children, take it when they start; there the
// handler fetches what a child was not given, or refuses it with a sentence.
void let_faults_come() {
  if (the_arena() != nullptr) install_fault_handler(*the_arena());
}

// As the first of MKL's vector functions is called, MKL finds out which of them suit the CPU. Where two threads make that call at
// once, one of them may compute in low precision, in that call alone (pytorch/pytorch#188792): what is made anew later would have
// other bits. So one thread makes it before. It does so where the first such operator begins, and not sooner: until then, a
// script may set what MKL and ATen read in that call.
bool let_mkl_choose() {
  std::array<float, 2> numbers{1, 1};
  at::Tensor of_them = at::from_blob(numbers.data(), {2});
  at::cpu::sqrt_out(of_them, of_them);
  return true;
}

// Whether it is an operator that calls MKL's vector functions (ATen/cpu/vml.h).
bool is_of_vectors(const at::RecordFunction& function) {
  constexpr std::array kNames = {"acos", "asin",  "atan", "cos", "erf",  "erfc", "erfinv", "exp",
                                 "log",  "log10", "log2", "sin", "sqrt", "tan",  "tanh",   "trunc"};
  std::string_view name = function.name();
  if (!name.starts_with("aten::")) return false;
  name.remove_prefix(std::string_view("aten::").size());
  if (name.ends_with('_')) name.remove_suffix(1);
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) return false;
  auto inputs = function.inputs();
  if (inputs.empty() || !inputs.back().isTensor()) return false;
  const at::Tensor& numbers = inputs.back().toTensor();
  if (!numbers.defined()) return false;
  const c10::TensorImpl& impl = *numbers.unsafeGetTensorImpl();
  if (impl.is_python_dispatch() || impl.has_symbolic_sizes_strides()) return false;
  return numbers.is_cpu() && numbers.numel() > 0 && !numbers.is_complex() && numbers.scalar_type() != at::kHalf &&
         numbers.scalar_type() != at::kBFloat16;
}

void let_mkl_choose_before(const at::RecordFunction& function) {
  static std::atomic<bool> chosen = false;
  if (chosen.load(std::memory_order_relaxed) || !is_of_vectors(function)) return;
  [[maybe_unused]] static const bool once = let_mkl_choose();
  chosen = true;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  enter_operator();
  begin_with_threads();
  let_mkl_choose_before(function);
  // Before operands are collected: an update has its own. What makes contents anew needs them as they were before it.
  if (anything_deferred() && !off_the_record) look_at(function.inputs());
  Watch& watch = *the_watch();
  if (!watch.on()) {
    if (the_arena() != nullptr && the_arena()->in_child()) let_faults_come();
    return nullptr;
  }
  // Of views, too, and of Functions.
  if (notes_lines() && function.seqNr() >= 0 && watch.tape().records_here()) note_line_of_node(function.seqNr(), line_here(""));
  const Treatment& treatment = known_treatment(function);
  next_is_untouched = treatment.makes_empty;
  if (treatment.passed_over) {
    if (!treatment.repeats_within) Births::look_at_inner(false);
    if (!treatment.composed || !names_modules()) return nullptr;
    auto entered = std::make_unique<Entered>();
    enter_module_of(function, *entered);
    return entered;
  }
  if (treatment.makes_empty && depth > 0 && the_device_memory() != nullptr) {  // what it makes is its caller's
    auto entered = std::make_unique<Entered>();
    entered->makes_empty = true;
    return entered;
  }
  if (depth == 0) {
    unpin_waited_for();
    unpin_ended(true);
  }
  auto entered = std::make_unique<Entered>();
  if (treatment.pins) enter_collective();
  entered->in_collective = treatment.pins;
  // A boxed call shows its caller's whole stack: the operator's own arguments are the last ones.
  auto inputs = function.inputs();
  std::size_t of_the_caller = inputs.size() - std::min(inputs.size(), treatment.schema->size());
  inputs = inputs.slice(of_the_caller);
  bool waited_for =
      treatment.async_op < inputs.size() && inputs[treatment.async_op].isBool() && !inputs[treatment.async_op].toBool();
  bool pins = in_collective();
  Births::look_at_inner(treatment.repeats_within);
  enter_module_of(function, *entered);
  const bool keeps_recipes = !in_backward_pass();
  RecipePointer changed;
  if (any_recipes())
    changed = prepare_for(inputs, treatment.uses, pins || treatment.gives_away, keeps_recipes && treatment.repeatable_in_place);
  std::vector<Operand>& operands = of_this_thread<Tables>().operands;
  operands.clear();
  std::size_t i = 0;
  for (const c10::IValue& input : inputs) {
    if (treatment.looks_at_bytes) collect_operands(input, i < treatment.uses.size() ? treatment.uses[i] : Use{}, operands);
    if (pins) pin_for_collective(input, waited_for);
    ++i;
  }
  if (!operands.empty()) let_faults_come();
  watch.enter(function.name(), operands, treatment.work, pass_now());
  ++depth;
  entered->in_watch = true;
  bool makes =
      keeps_recipes && treatment.repeatable && !off_the_record && recipe_memory() != nullptr && recipe_memory()->wants_recipes();
  if (makes || changed != nullptr) entered->call = KeptCall::of(*treatment.op, inputs, std::move(changed), treatment.version);
  if (Tape& tape = watch.tape(); tape.records() && !off_the_record) {
    tape.describe(of_this_thread<Tables>().description.of(function.overload_name(), *treatment.schema, inputs), phase_now());
  }
  return entered;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  leave_operator();
  if (context == nullptr) return;
  auto* entered = static_cast<Entered*>(context);
  if (!entered->in_watch && !entered->makes_empty) return entered->exit();
  if (DeviceMemory* device = the_device_memory()) {
    for (const c10::IValue& output : function.outputs())
      for_each_part(output, [&](const at::Tensor& part) { device->find_result(*storage_behind(part)); });
  }
  if (entered->makes_empty) return the_device_memory()->note_births();
  entered->exit();
}

// TorchScript reads tensors without an operator, in lists that it makes of them and in code that it has fused. Its own backward
// pass reads what it is called with.
std::unique_ptr<at::ObserverContext> begin_script(const at::RecordFunction& function) {
  if (!anything_deferred() || off_the_record) return nullptr;
  bool has_module = std::ranges::any_of(function.inputs(), [](const c10::IValue& input) { return input.isObject(); });
  in_backward_pass() && !has_module ? look_at(function.inputs()) : look_at_all();
  return nullptr;
}

}  // namespace

void forget_nodes() {
  forget_makers();
  forget_lines();
}

void enter_optimizer(bool enters) {
  in_optimizer = enters;
  optimizer_task = torch::autograd::get_current_graph_task_id();
}

InOptimizer::InOptimizer() : before_(in_optimizer), task_before_(optimizer_task) { enter_optimizer(true); }

InOptimizer::~InOptimizer() {
  in_optimizer = before_;
  optimizer_task = task_before_;
}

Phase phase_now() {
  int task = torch::autograd::get_current_graph_task_id();
  if (in_optimizer && task == optimizer_task) return Phase::Optimizer;
  if (task != -1) return Phase::Backward;  // within an optimizer's step it is its closure's
  return in_optimizer ? Phase::Optimizer : Phase::Other;
}

Pass pass_now() {
  if (phase_now() != Phase::Other) return Pass::Trains;
  return at::GradMode::is_enabled() ? Pass::Computes : Pass::Evaluates;
}

void install_recorder(bool shows_results) {
  if (callback != at::INVALID_CALLBACK_HANDLE) return;
  hear_of_operators();
  auto asked = at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(shows_results);
  callback = at::addGlobalCallback(asked.scopes({at::RecordScope::FUNCTION}));
  at::RecordFunctionCallback before_scripts(begin_script);
  script_callback = at::addGlobalCallback(before_scripts.needsInputs(true).scopes({at::RecordScope::TORCHSCRIPT_FUNCTION}));
}

void remove_recorder() {
  if (callback == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(callback);
  at::removeCallback(script_callback);
  callback = at::INVALID_CALLBACK_HANDLE;
}

}  // namespace ebbtide
