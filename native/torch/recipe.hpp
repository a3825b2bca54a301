// A recipe: what made a storage, and how that runs again. Who has one, and when it is carried out: recipes.hpp.
//
// [Note: ingredients]  A recipe holds what its operators read, so that it lives on. What is not to live on, as the normalized
// input of a ReLU, is an ingredient: the recipe that it had is a part of this one. That runs right before the call that reads it,
// in memory of its own, which is given back when the call has ended; where two calls read it, it runs twice. Whatever an
// ingredient's recipe holds, this one holds, too. So an ingredient may have died, or been changed or moved: its recipe tells what
// it was.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic.hpp"

namespace ebbtide {

// What an operator's result depends on besides its arguments.
struct Settings {
  Threads threads = threads_now();
  bool deterministic = at::globalContext().deterministicAlgorithms();
  bool onednn = at::globalContext().userEnabledMkldnn();
  bool onednn_deterministic = at::globalContext().deterministicMkldnn();
  at::Float32Precision products = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  at::Float32Precision convolutions = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV);
  at::Float32Precision cuda_products = at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
  at::CuBLASReductionOption halves = at::globalContext().allowFP16ReductionCuBLAS();
  at::CuBLASReductionOption bfloats = at::globalContext().allowBF16ReductionCuBLAS();
  bool half_sums = at::globalContext().allowFP16AccumulationCuBLAS();
  at::BlasBackend blas = at::globalContext().blasPreferredBackend();
  caffe2::TypeMeta default_type = c10::get_default_dtype();

  bool operator==(const Settings&) const = default;
};

// Changes of settings and kernels, by any thread. An operator keeps no recipe where one is under way as it begins, or begins before it
// ends.
inline std::atomic<std::uint64_t> changes_begun = 0, changes_ended = 0;

struct Recipe;
using RecipePointer = std::shared_ptr<const Recipe>;

struct Call {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // its tensors lie where the script's lay, and own none of that
  std::vector<RecipePointer> ingredients;  // all were there at once, so no two of them had the same memory
};

// Memory that a recipe reads.
struct Held {
  std::shared_ptr<const void> memory;  // [RecipeMemory]
  const void* address;  // of the whole
  std::span<const char> read;  // of it, from the first byte to the last
};

// It does not change any more once it is on the tables.
struct Recipe {
  const void* address = nullptr;  // of the storage [RecipeMemory]
  std::size_t nbytes = 0;
  std::size_t birth = 0;  // which of the first call's births it is
  std::vector<Call> calls;
  std::vector<Held> held;  // by its ingredients, too
  std::uint64_t changes = changes_begun;  // before it was called
  Settings settings;
  std::optional<std::uint32_t> checksum;  // of the contents
};

// Dispatch keys above which an operator is more than its kernel.
inline constexpr c10::DispatchKeySet kAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView;

std::uint32_t checksum_of(const void* memory, std::size_t nbytes);

c10::Storage copy_in_host_memory(const c10::Storage& storage);

// A plain tensor of the same device that is like this one, in a storage.
at::Tensor tensor_in(c10::Storage storage, const at::Tensor& like);
// The same tensor in memory that others own.
at::Tensor alias_of(const at::Tensor& tensor, const void* memory, std::size_t nbytes);

// An argument with what `change` returns in place of each of its tensors; nothing where that is nothing.
template <typename Change>
std::optional<c10::IValue> with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    std::optional<at::Tensor> one = change(value.toTensor());
    return one ? std::optional(c10::IValue(*one)) : std::nullopt;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      std::optional<at::Tensor> one = change(tensor);
      if (!one) return std::nullopt;
      list.push_back(*one);
    }
    return c10::IValue(list);
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      std::optional<at::Tensor> one = tensor ? change(*tensor) : at::Tensor();
      if (!one) return std::nullopt;
      list.push_back(one->defined() ? one : std::nullopt);
    }
    return c10::IValue(list);
  }
  return value;
}

// Why a storage cannot be made anew, and by which operator.
struct CannotMake : std::runtime_error {
  CannotMake(const std::string& why, std::string operator_name) : std::runtime_error(why), op(std::move(operator_name)) {}
  std::string op;
};

// How many calls run, those of its ingredients among them.
std::size_t calls_of(const Recipe& recipe);

// Runs the operators once more, in other memory, and hands over what is Unmade by the recipe of this number. False: nothing is,
// since another thread was faster. Throws CannotMake, or c10::OutOfMemoryError. `again`: it threw that.
bool carry_out(const Recipe& recipe, std::uint64_t number, bool keeps, bool again);

}  // namespace ebbtide
