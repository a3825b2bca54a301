#include "recipe.hpp"

#include <ATen/core/List.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
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

// Memory in which an argument of a call lay, and where it lies now.
struct Moved {
  const void* from;
  std::size_t nbytes;
  void* to;
};

torch::jit::Stack stack_of(const Call& call, const std::vector<Moved>& all) {
  auto moved = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    auto* memory = static_cast<char*>(tensor.storage().mutable_data());
    for (const Moved& each : all) {
      auto offset = static_cast<std::size_t>(memory - static_cast<const char*>(each.from));  // large where it lies before
      if (offset < each.nbytes) return alias_of(tensor, static_cast<char*>(each.to) + offset, tensor.storage().nbytes());
    }
    return tensor;
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

// What a recipe has made, in memory that the results keep.
struct Made {
  torch::jit::Stack results;
  void* memory = nullptr;
};

// Throws where it makes something else than the first time.
Made first_call(const Recipe& recipe, torch::jit::Stack stack) {
  void* memory = nullptr;
  {
    Births own;
    recipe.calls[0].op.callBoxed(&stack);
    if (recipe.birth < own.addresses().size()) memory = own.addresses()[recipe.birth];
  }
  bool is_result = std::ranges::any_of(stack, [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().storage().data() == memory;
  });
  if (memory == nullptr || !is_result || the_arena()->size_of(memory) != recipe.nbytes) {
    throw std::runtime_error("it allocates other memory than the first time");
  }
  return {std::move(stack), memory};
}

Made make(const Recipe& recipe);

Made make_by_calls(const Recipe& recipe) {
  if (Settings() != recipe.settings) {
    throw std::runtime_error(
        "PyTorch's settings (precision, default type, determinism, denormal numbers, oneDNN) were changed within a step");
  }
  Made made;
  for (const Call& call : recipe.calls) {
    std::vector<Made> ingredients;  // until the call has ended
    std::vector<Moved> moved;
    for (const RecipePointer& each : call.ingredients) {
      ingredients.push_back(make(*each));
      moved.push_back({each->address, each->nbytes, ingredients.back().memory});
      the_arena()->made_ingredient(each->nbytes);
    }
    if (made.memory == nullptr) {
      made = first_call(recipe, stack_of(call, moved));
    } else {
      moved.push_back({recipe.address, recipe.nbytes, made.memory});
      torch::jit::Stack stack = stack_of(call, moved);
      call.op.callBoxed(&stack);
    }
  }
  if (recipe.checksum && checksum_of(made.memory, recipe.nbytes) != *recipe.checksum) {
    throw std::runtime_error("other bytes come out than the first time, from the same arguments (please report it)");
  }
  return made;
}

// It says the operator's name after those of the operators that it was for.
Made make(const Recipe& recipe) {
  const std::string& name = recipe.calls[0].op.schema().name();
  try {
    return make_by_calls(recipe);
  } catch (const CannotMake& error) {
    throw CannotMake(name + ": " + error.what(), error.op);
  } catch (const std::exception& error) {
    throw CannotMake(name + ": " + error.what(), name);
  }
}

}  // namespace

std::size_t calls_of(const Recipe& recipe) {
  std::size_t calls = recipe.calls.size();
  for (const Call& call : recipe.calls) {
    for (const RecipePointer& each : call.ingredients) calls += calls_of(*each);
  }
  return calls;
}

bool carry_out(const Recipe& recipe, std::uint64_t number, bool keeps) {
  NoBirths births;
  OffTheRecord off;
  WithThreads threads(recipe.settings.threads);
  return the_arena()->hand_over(make(recipe).memory, recipe.address, number, keeps);
}

}  // namespace ebbtide
