#include "recipe.hpp"

#include <ATen/core/List.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "../core/checksum.hpp"
#include "allocator.hpp"
#include "births.hpp"

namespace ebbtide {

std::uint32_t checksum_of(const void* memory, std::size_t nbytes) {
  Checksum sum;
  std::size_t whole = nbytes / Checksum::kUnit * Checksum::kUnit;
  alignas(8) std::array<char, Checksum::kUnit> rest{};
  std::memcpy(rest.data(), static_cast<const char*>(memory) + whole, nbytes - whole);
  sum.add(memory, whole);
  sum.add(rest.data(), rest.size());
  return sum.value();
}

at::Tensor tensor_in(c10::Storage storage, const at::Tensor& like) {
  auto made =
      at::detail::make_tensor<at::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

at::Tensor alias_of(const at::Tensor& tensor, void* memory, std::size_t nbytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(memory, c10::Device(c10::DeviceType::CPU)), nullptr,
                       false);
  return tensor_in(std::move(storage), tensor);
}

namespace {

// What is done on this thread is no part of the step, and runs below autograd, autocast and all modes.
class OffTheRecord {
 public:
  OffTheRecord()
      : below_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), c10::default_excluded_set | kAbove),
        before_(std::exchange(off_the_record, true)) {}
  ~OffTheRecord() { off_the_record = before_; }
  OffTheRecord(const OffTheRecord&) = delete;
  OffTheRecord& operator=(const OffTheRecord&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard below_;
  bool before_;
};

// This thread's number of threads, for a while. Who sets it sets the number of threads yet to begin, too, so that is put back.
class WithThreads {
 public:
  explicit WithThreads(int threads) : before_(at::get_num_threads()), changes_(threads != before_) {
    if (!changes_) return;
    std::thread([this] { of_new_ones_ = at::get_num_threads(); }).join();
    at::set_num_threads(threads);
  }
  ~WithThreads() {
    if (!changes_) return;
    at::set_num_threads(before_);
    std::thread([this] { at::set_num_threads(of_new_ones_); }).join();
  }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;

 private:
  const int before_;
  const bool changes_;
  int of_new_ones_ = 0;
};

// The arguments, with what lay in the storage in `memory`.
torch::jit::Stack stack_of(const Call& call, const Recipe& recipe, void* memory) {
  auto moved = [&](const at::Tensor& tensor) {
    bool lies_there = tensor.defined() && tensor.storage().mutable_data() == recipe.address;
    return lies_there ? alias_of(tensor, memory, recipe.nbytes) : tensor;
  };
  torch::jit::Stack stack = call.arguments;
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      value = moved(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(moved(tensor));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) list.push_back(tensor ? std::optional(moved(*tensor)) : tensor);
      value = list;
    }
  }
  return stack;
}

}  // namespace

bool carry_out(const Recipe& recipe, std::uint64_t number, bool keeps) {
  NoBirths births;
  OffTheRecord off;
  WithThreads threads(recipe.settings.threads);
  if (Settings() != recipe.settings) {
    throw std::runtime_error(
        "PyTorch's settings (precision, default type, determinism, denormal numbers, oneDNN) were changed within a step");
  }
  torch::jit::Stack results = stack_of(recipe.calls[0], recipe, nullptr);  // they keep the memory
  void* made = nullptr;
  {
    Births own;
    recipe.calls[0].op.callBoxed(&results);
    if (recipe.birth < own.addresses().size()) made = own.addresses()[recipe.birth];
  }
  bool is_result = std::ranges::any_of(results, [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().storage().data() == made;
  });
  if (made == nullptr || !is_result || the_arena()->size_of(made) != recipe.nbytes) {
    throw std::runtime_error("it allocates other memory than the first time");
  }
  for (std::size_t i = 1; i < recipe.calls.size(); ++i) {
    torch::jit::Stack stack = stack_of(recipe.calls[i], recipe, made);
    recipe.calls[i].op.callBoxed(&stack);
  }
  if (recipe.checksum && checksum_of(made, recipe.nbytes) != *recipe.checksum) {
    throw std::runtime_error("other bytes come out than the first time, from the same arguments: please report the operator");
  }
  return the_arena()->hand_over(made, recipe.address, number, keeps);
}

}  // namespace ebbtide
