#include "recipe.hpp"

#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "../core/checksum.hpp"
#include "births.hpp"
#include "recipe_memory.hpp"
#include "repeatable.hpp"
#include "silence.hpp"

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

c10::Storage copy_in_host_memory(const c10::Storage& storage) {
  std::size_t nbytes = storage.nbytes();
  c10::DataPtr data = c10::GetAllocator(c10::DeviceType::CPU)->allocate(nbytes);
  if (nbytes > 0) std::memcpy(data.get(), storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get(), nbytes);
  return {c10::Storage::use_byte_size_t(), nbytes, std::move(data), nullptr, false};
}

at::Tensor tensor_in(c10::Storage storage, const at::Tensor& like) {
  c10::DispatchKeySet keys = like.key_set() - kAbove - c10::autocast_dispatch_keyset;
  auto made = at::detail::make_tensor<at::TensorImpl>(std::move(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

at::Tensor alias_of(const at::Tensor& tensor, const void* memory, std::size_t nbytes) {
  c10::DataPtr unowned(const_cast<void*>(memory), tensor.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(unowned), nullptr, false);
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

// Memory in which an argument of a call lay, and where it lies now: there, or in a storage whose memory may be another one when an
// operator asks for it.
struct Moved {
  const void* from;
  std::size_t nbytes;
  const void* to;
  c10::Storage storage{};
};

Moved moved_to(const void* from, std::size_t nbytes, const void* to, const c10::Storage& storage) {
  if (recipe_memory()->knows_by_object()) return {from, 1, nullptr, storage};
  return {from, nbytes, to};
}

torch::jit::Stack stack_of(const Call& call, const std::vector<Moved>& all) {
  auto moved = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    auto* memory = static_cast<const char*>(tensor.storage().data());
    for (const Moved& each : all) {
      auto offset = static_cast<std::size_t>(memory - static_cast<const char*>(each.from));  // large where it lies before
      if (offset >= each.nbytes) continue;
      if (each.storage) return tensor_in(each.storage, tensor);
      return alias_of(tensor, static_cast<const char*>(each.to) + offset, tensor.storage().nbytes());
    }
    return tensor;
  };
  torch::jit::Stack stack = call.arguments;
  for (c10::IValue& value : stack) value = *with_tensors(value, moved);
  return stack;
}

// What a recipe has made, in memory that the results keep.
struct Made {
  torch::jit::Stack results;
  const void* memory = nullptr;  // [RecipeMemory]
  c10::Storage storage{};
};

// Throws where it makes something else than the first time.
Made first_call(const Recipe& recipe, torch::jit::Stack stack) {
  const void* memory = nullptr;
  {
    Births own;
    recipe.calls[0].op.callBoxed(&stack);
    if (recipe.birth < own.addresses().size()) memory = own.addresses()[recipe.birth];
  }
  auto result = std::ranges::find_if(stack, [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return false;
    return recipe_memory()->place_of(*value.toTensor().storage().unsafeGetStorageImpl()) == memory;
  });
  if (memory == nullptr || result == stack.end() || recipe_memory()->size_of(memory) != recipe.nbytes) {
    throw std::runtime_error("it allocates other memory than the first time");
  }
  c10::Storage storage = result->toTensor().storage();
  return {std::move(stack), memory, std::move(storage)};
}

Made made_by(const Recipe& recipe);

Made make_by_calls(const Recipe& recipe) {
  if (Settings() != recipe.settings) {
    throw std::runtime_error(
        "PyTorch's settings (precision, default type, determinism, denormal numbers, oneDNN) were changed within a step");
  }
  Made made;
  for (const Call& call : recipe.calls) {
    if (!still_has_known_kernels(call.op)) throw std::runtime_error("a library that was loaded since gave it another kernel");
    std::vector<Made> ingredients;  // until the call has ended
    std::vector<Moved> moved;
    for (const RecipePointer& each : call.ingredients) {
      ingredients.push_back(made_by(*each));
      moved.push_back(moved_to(each->address, each->nbytes, ingredients.back().memory, ingredients.back().storage));
      recipe_memory()->made_ingredient(each->nbytes);
    }
    if (recipe_memory()->knows_by_object()) {
      for (const Held& held : recipe.held) {
        if (!recipe_memory()->is_guarded(held.address))
          throw std::runtime_error("what it reads was given other memory, by no operator");
        auto* storage = static_cast<c10::StorageImpl*>(const_cast<void*>(held.memory.get()));
        moved.push_back({held.address, 1, nullptr, c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage))});
      }
    }
    if (made.memory == nullptr) {
      made = first_call(recipe, stack_of(call, moved));
    } else {
      moved.push_back(moved_to(recipe.address, recipe.nbytes, made.memory, made.storage));
      torch::jit::Stack stack = stack_of(call, moved);
      call.op.callBoxed(&stack);
    }
  }
  if (recipe.checksum && recipe_memory()->checksum_of(made.memory) != *recipe.checksum) {
    throw std::runtime_error("other bytes come out than the first time, from the same arguments (please report it)");
  }
  return made;
}

// It says the operator's name after those of the operators that it was for.
Made made_by(const Recipe& recipe) {
  const std::string& name = recipe.calls[0].op.schema().name();
  try {
    return make_by_calls(recipe);
  } catch (const CannotMake& error) {
    throw CannotMake(name + ": " + error.what(), error.op);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    if (recipe_memory()->lacked_memory()) TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
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

bool carry_out(const Recipe& recipe, std::uint64_t number, bool keeps, bool again) {
  RECORD_USER_SCOPE("ebbtide: making anew");  // the operators in it are not the script's
  Silence silence;  // what there is to warn of, the first time has said
  NoBirths births;
  OffTheRecord off;
  WithThreads threads(recipe.settings.threads);
  c10::OptionalStreamGuard stream;
  if (auto its = recipe_memory()->begin_making(recipe.address, again)) stream.reset_stream(*its);
  Made made = made_by(recipe);
  return recipe_memory()->hand_over(made.memory, recipe.address, number, keeps);
}

}  // namespace ebbtide
