// The device's operators. Each runs the CPU's kernel on the device's memory, on the stream's thread.
//
// [Note: beside the host]
// The Meta kernel says which sizes the results have, so that their memory is there when the host goes on. The operands
// become CPU tensors over the raw pointers of that moment. Where Meta cannot say it (results whose sizes depend on data,
// or that are no tensors), and where random numbers are drawn, the host waits.

#include "lagging.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <map>
#include <set>
#include <unordered_map>

namespace lagging {
namespace {

using c10::IValue;
using Values = std::vector<IValue>;

constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, &memory(), KEYS, dtype);
}

at::Tensor as_large_as(const at::Tensor& tensor) { return empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type()); }

bool is_here(const at::Tensor& tensor) { return tensor.device().type() == DEVICE_TYPE; }

// A CPU tensor over the memory that the tensor has now. It keeps nothing alive, as a pointer in a kernel's arguments. A
// kernel of the CPU may give it other memory, where an `out` is too small while it computes.
at::Tensor pointer_to(const at::Tensor& tensor) {
  auto* start = static_cast<char*>(tensor.storage().data_ptr().get()) + tensor.storage_offset() * tensor.element_size();
  const size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  c10::DataPtr memory(bytes ? start : nullptr, c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory), c10::GetCPUAllocator(), true);
  constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  at::Tensor pointer = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), cpu, tensor.dtype());
  pointer.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  pointer._set_conj(tensor.is_conj());
  pointer._set_neg(tensor.is_neg());
  return pointer;
}

// Applies a function to each tensor of an argument; the same tensor twice is one in the result, too.
class TensorMap {
 public:
  explicit TensorMap(std::function<at::Tensor(const at::Tensor&)> function) : function_(std::move(function)) {}

  IValue of(const IValue& value) {
    if (value.isTensor()) return of(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(of(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) list.push_back(tensor ? std::optional(of(*tensor)) : tensor);
      return list;
    }
    return value;
  }

  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    at::Tensor& result = done_[tensor.unsafeGetTensorImpl()];
    if (!result.defined()) {
      result = function_(tensor);
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) result.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return result;
  }

 private:
  std::function<at::Tensor(const at::Tensor&)> function_;
  std::unordered_map<c10::TensorImpl*, at::Tensor> done_;
};

// Arguments as a kernel has them. What lies on the CPU is passed by value, as a scalar is.
Values pointers_to(const Values& arguments) {
  TensorMap map([](const at::Tensor& tensor) { return is_here(tensor) ? pointer_to(tensor) : tensor.clone(); });
  Values pointers;
  for (const IValue& argument : arguments) {
    pointers.push_back(argument.isDevice() ? IValue(c10::Device(c10::kCPU)) : map.of(argument));
  }
  return pointers;
}

Values run_kernel(const c10::OperatorHandle& op, Values arguments) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
  return arguments;
}

std::vector<at::Tensor> tensors_of(const IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>{};
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// The argument that a result is: of an operator in place, or with `out`.
const IValue& written_argument(const c10::FunctionSchema& schema, const c10::Argument& result, const Values& arguments) {
  for (size_t at = 0; at < arguments.size(); ++at) {
    const auto* info = schema.arguments()[at].alias_info();
    if (info && *info == *result.alias_info()) return arguments[at];
  }
  TORCH_CHECK(false, "No argument is the result of ", schema.operator_name());
}

// Counted by operator.
std::mutex calls_mutex;
std::map<std::string, Calls>& counted_calls() {
  static auto* calls = new std::map<std::string, Calls>;
  return *calls;
}

void count(const c10::OperatorHandle& op, bool beside) {
  std::lock_guard lock(calls_mutex);
  Calls& calls = counted_calls()[toString(op.operator_name())];
  ++(beside ? calls.beside : calls.waited_for);
}

// Results on the Meta device, and the arguments there: an `out` has its new size. Nothing where Meta cannot say.
std::optional<std::pair<Values, Values>> shapes_of(const c10::OperatorHandle& op, const Values& arguments) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return {};
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return {};
  // Here Meta has the sizes that CUDA's kernel makes.
  static const std::set<std::string> as_cuda{"aten::_embedding_bag", "aten::_embedding_bag_forward_only"};
  if (as_cuda.contains(op.operator_name().name)) return {};
  for (const c10::Argument& result : op.schema().returns()) {
    const auto kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return {};
  }
  TensorMap map([](const at::Tensor& tensor) -> at::Tensor {
    if (!is_here(tensor) && tensor.dim() == 0) return tensor;
    return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  });
  Values mapped;
  for (const IValue& argument : arguments) {
    mapped.push_back(argument.isDevice() ? IValue(c10::Device(c10::kMeta)) : map.of(argument));
  }
  Values results = mapped;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &results);
  } catch (const std::exception&) {
    return {};  // that sizes depend on data, or an error, which the CPU's kernel makes as well
  }
  for (const IValue& result : results) {
    for (const at::Tensor& tensor : tensors_of(result)) {
      if (tensor.defined() && !tensor.is_meta()) return {};
    }
  }
  return std::pair{std::move(results), std::move(mapped)};
}

// As the CPU's, but what a storage had is copied in the stream's order when it grows.
const at::Tensor& give_sizes(const at::Tensor& tensor, at::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto offset = static_cast<size_t>(tensor.storage_offset());
  const size_t needed = at::detail::computeStorageNbytesContiguous(sizes, tensor.itemsize(), offset);
  if (needed > tensor.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), needed);
  impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  return tensor;
}

void match_size(const at::Tensor& tensor, const at::Tensor& meta) {
  if (!tensor.defined() || tensor.sizes() == meta.sizes()) return;
  give_sizes(tensor, meta.sizes(), std::nullopt);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
}

// Into memory that the results were given before.
void put(const c10::OperatorHandle& op, const Values& results, const std::vector<std::vector<at::Tensor>>& places) {
  for (size_t at = 0; at < results.size(); ++at) {
    const auto made = tensors_of(results[at]);
    for (size_t which = 0; which < places[at].size(); ++which) {
      const at::Tensor& place = places[at][which];
      if (!place.defined()) continue;
      // What the CPU's kernel leaves out in this mode, nobody reads: batch norm's statistics in evaluation.
      if (which < made.size() && made[which].defined() && made[which].numel() == 0) continue;
      const bool as_said = which < made.size() && made[which].defined() && made[which].sizes() == place.sizes() &&
                           made[which].scalar_type() == place.scalar_type();
      TORCH_CHECK(as_said, "The Meta kernel of ", op.operator_name(), " is wrong about result ", at);
      at::Tensor(place).copy_(made[which]);
    }
  }
}

// What the operator writes to, as the kernel has it, and where it lies.
std::vector<std::pair<at::Tensor, at::Tensor>> written(const c10::FunctionSchema& schema, const Values& arguments,
                                                       const Values& operands) {
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t at = 0; at < arguments.size(); ++at) {
    if (!is_written(schema.arguments()[at])) continue;
    const auto tensors = tensors_of(arguments[at]);
    const auto pointers = tensors_of(operands[at]);
    for (size_t which = 0; which < tensors.size(); ++which) {
      if (tensors[which].defined()) written.emplace_back(pointers[which], pointer_to(tensors[which]));
    }
  }
  return written;
}

std::optional<Values> run_beside_host(const c10::OperatorHandle& op, const Values& arguments) {
  auto shapes = shapes_of(op, arguments);
  if (!shapes) return {};
  const auto& schema = op.schema();
  const auto& [metas, meta_arguments] = *shapes;
  for (size_t at = 0; at < arguments.size(); ++at) {
    if (!is_written(schema.arguments()[at])) continue;
    const auto tensors = tensors_of(arguments[at]);
    const auto sizes = tensors_of(meta_arguments[at]);
    for (size_t which = 0; which < tensors.size(); ++which) match_size(tensors[which], sizes[which]);
  }
  TensorMap born([](const at::Tensor& meta) { return as_large_as(meta); });
  Values results;
  std::vector<std::vector<at::Tensor>> places(metas.size());
  for (size_t at = 0; at < metas.size(); ++at) {
    const c10::Argument& result = schema.returns()[at];
    if (is_written(result)) {
      results.push_back(written_argument(schema, result, arguments));
      continue;
    }
    TORCH_CHECK(!result.alias_info(), op.operator_name(), " makes a view, and the lagging device has no kernel for it");
    results.push_back(born.of(metas[at]));
    for (const at::Tensor& tensor : tensors_of(results.back())) {
      places[at].push_back(tensor.defined() ? pointer_to(tensor) : tensor);
    }
  }
  Values operands = pointers_to(arguments);
  auto outs = written(schema, arguments, operands);
  launch(current_stream(), [op, operands = std::move(operands), places = std::move(places), outs = std::move(outs)] {
    put(op, run_kernel(op, operands), places);
    for (const auto& [operand, place] : outs) {
      if (operand.data_ptr() != place.data_ptr()) put(op, {operand}, {{place}});
    }
  });
  count(op, true);
  return results;
}

// Draws from the device's generator in the order of the host's calls, which the CPU's kernels do from the CPU's.
class DrawsFromDevice {
 public:
  explicit DrawsFromDevice(Values& arguments) : generator_(default_generator()) {
    for (IValue& argument : arguments) {
      if (!argument.isGenerator()) continue;
      generator_ = argument.toGenerator();
      argument = IValue();
    }
    before_ = at::detail::getDefaultCPUGenerator().get_state();
    set(at::detail::getDefaultCPUGenerator(), generator_.get_state());
  }
  ~DrawsFromDevice() {
    set(generator_, at::detail::getDefaultCPUGenerator().get_state());
    set(at::detail::getDefaultCPUGenerator(), before_);
  }
  DrawsFromDevice(const DrawsFromDevice&) = delete;
  DrawsFromDevice& operator=(const DrawsFromDevice&) = delete;

 private:
  static void set(at::Generator generator, const at::Tensor& state) { generator.set_state(state); }

  at::Generator generator_;
  at::Tensor before_;
};

void launch_and_wait(const std::function<void()>& work) {
  std::exception_ptr failure;
  launch(current_stream(), [&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  synchronize(current_stream());
  if (failure) std::rethrow_exception(failure);
}

// Where the kernel made a result of its own, or gave an `out` other memory.
void put_into(const at::Tensor& tensor, const at::Tensor& made) {
  if (!tensor.defined() || (tensor.sizes() == made.sizes() && pointer_to(tensor).data_ptr() == made.data_ptr())) return;
  match_size(tensor, made);
  launch(current_stream(), [made, place = pointer_to(tensor)] { at::Tensor(place).copy_(made); });
}

Values run_while_host_waits(const c10::OperatorHandle& op, const Values& arguments) {
  const Values operands = pointers_to(arguments);
  Values results = operands;
  launch_and_wait([&] {
    std::optional<DrawsFromDevice> draws;
    if (op.hasTag(at::Tag::nondeterministic_seeded)) draws.emplace(results);
    results = run_kernel(op, std::move(results));
  });
  for (size_t at = 0; at < arguments.size(); ++at) {
    if (!is_written(op.schema().arguments()[at])) continue;
    const auto tensors = tensors_of(arguments[at]);
    const auto made = tensors_of(operands[at]);
    for (size_t which = 0; which < tensors.size(); ++which) put_into(tensors[which], made[which]);
  }
  TensorMap moved([](const at::Tensor& made) {
    at::Tensor result = as_large_as(made);
    put_into(result, made);
    return result;
  });
  for (size_t at = 0; at < results.size(); ++at) {
    const c10::Argument& result = op.schema().returns()[at];
    results[at] = is_written(result) ? written_argument(op.schema(), result, arguments) : moved.of(results[at]);
  }
  count(op, false);
  return results;
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::RecordFunctionGuard unseen(false);  // a kernel is made of no operators
  const Values arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  auto results = run_beside_host(op, arguments);
  if (!results) results = run_while_host_waits(op, arguments);
  for (IValue& result : *results) stack->push_back(std::move(result));
}

// Beside the host if one side is pinned and the bytes need not be put in another order, as on CUDA.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::RecordFunctionGuard unseen(false);
  const bool as_bytes = from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
                        from.is_non_overlapping_and_dense() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
  const at::Tensor& host = is_here(from) ? to : from;
  const void* host_memory = host.storage().data_ptr().get();
  const bool waits = !is_here(host) && !(non_blocking && as_bytes && is_pinned(host_memory));
  launch(current_stream(), [from = pointer_to(from), to = pointer_to(to)] { at::Tensor(to).copy_(from); });
  if (waits) {
    synchronize(current_stream());
  } else if (!is_here(host)) {
    void* context = host.storage().data_ptr().get_context();
    at::getHostAllocator(DEVICE_TYPE)->record_event(const_cast<void*>(host_memory), context, current_stream());
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  give_sizes(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  const at::RecordFunctionGuard unseen(false);
  c10::complex<double> memory;  // of the largest element
  const at::Tensor value = at::from_blob(&memory, {}, at::dtype(tensor.dtype()));
  launch_and_wait([&, from = pointer_to(tensor)] { at::Tensor(value).copy_(from.reshape({})); });
  return at::native::_local_scalar_dense_cpu(value);
}

at::Tensor empty_in_format(at::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                           std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &memory(), KEYS, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_with_strides(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                              std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return empty_strided(sizes, strides, c10::dtype_or_default(dtype));
}

at::Tensor& set_to_nothing(at::Tensor& tensor) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, &memory(), true);
  return at::native::set_storage_cpu_(tensor, nothing, 0, {0}, {});
}

void record_stream(at::Tensor& tensor, at::Stream stream) { memory().recordStream(tensor.storage().data_ptr(), stream); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_in_format);
  m.impl("empty_strided", &empty_with_strides);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &give_sizes);
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_", &set_to_nothing);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("record_stream", &record_stream);
  // PyTorch would look for a backend's own convolution, and take the others to pieces.
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "silu_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  }
}

// By a copy PyTorch makes a tensor without these bits, so the copy itself takes them.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;  // NOLINT: the macros name its policies
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FP32_SET_OPT_DTYPE)
  AT_FORALL_PROMOTE(PROMOTE)
}

}  // namespace

std::vector<std::pair<std::string, Calls>> calls() {
  std::lock_guard lock(calls_mutex);
  return {counted_calls().begin(), counted_calls().end()};
}

}  // namespace lagging
