#include "recipes.hpp"

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <semaphore.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "device_memory.hpp"
#include "recipe_memory.hpp"
#include "repeatable.hpp"

namespace ebbtide {

namespace {

constexpr int kMostTries = 1000;
constexpr std::size_t kMostCalls = 16;  // of a recipe: what is changed at each step, or made of that, would have more and more

std::atomic<bool> checks_what_is_made = false;
std::atomic<bool> wants_all = false;

// ---- keeping

bool is_plain(const at::Tensor& tensor) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.is_python_dispatch()) return false;  // its class may say itself what its device is, and is not asked
  c10::DispatchKey own = c10::computeDispatchKey(std::nullopt, std::nullopt, impl.device());
  return impl.has_storage() && impl.key_set() - kAbove - c10::autocast_dispatch_keyset == c10::DispatchKeySet(own) &&
         !impl.has_symbolic_sizes_strides();
}

// What nobody watches is small, and copied. On an accelerator the host's memory may be written to by a stream: not what is read when
// an operator is called, a single number.
bool may_be_copied(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  if (storage.nbytes() >= recipe_memory()->least_managed()) return false;
  if (!tensor.is_cpu()) return recipe_memory()->knows_by_object();
  if (recipe_memory()->knows_by_object()) return tensor.dim() == 0;
  return reinterpret_cast<std::uintptr_t>(storage.data()) % kAlignment == 0;
}

// An argument as it can be used again, or nothing. What it holds is added to the recipe, and its ingredient to the call.
class Keeper {
 public:
  Keeper(Recipe& recipe, Call& call) : recipe_(recipe), call_(call) {}

  std::optional<c10::IValue> keep(const c10::IValue& value) {
    if (value.isGenerator() || value.isObject() || value.isPyObject() || value.isStorage()) return std::nullopt;
    if (!value.isTensor() && !value.isTensorList() && !value.isOptionalTensorList()) {
      bool has_tensors = value.isGenericDict();
      for_each_part(value, [&](const at::Tensor&) { has_tensors = true; });
      if (has_tensors) return std::nullopt;
    }
    if (value.isList() && !value.isTensorList() && !value.isOptionalTensorList())
      return value.toList().copy();  // TorchScript gives the script's own list, which may change afterwards
    return with_tensors(value, [this](const at::Tensor& tensor) { return keep_tensor(tensor); });
  }

 private:
  std::optional<at::Tensor> keep_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return at::Tensor();
    if (!is_plain(tensor)) return std::nullopt;
    c10::StorageImpl* storage = storage_behind(tensor);
    const void* place = recipe_memory()->place_of(*storage);
    if (place == nullptr) {
      if (!may_be_copied(tensor, *storage)) return std::nullopt;
      return tensor_in(recipe_memory()->copy_of(tensor.storage()), tensor);
    }
    if (!recipe_memory()->may_be_read_again(place)) return std::nullopt;
    const void* whole = recipe_memory()->storage_at(place);
    if (whole != recipe_.address) {  // else it is what the operator changes
      if (!recipe_memory()->is_ingredient(whole)) {
        add_held({recipe_memory()->keep_alive(*storage, whole), whole, recipe_memory()->reach_of(tensor, place)});
      } else if (!take_in(recipe_of(whole))) {
        return std::nullopt;
      }
    }
    return alias_of(tensor, place, storage->nbytes());
  }

  void add_held(Held held) {
    auto known = std::ranges::find(recipe_.held, held.address, &Held::address);
    if (known == recipe_.held.end()) return recipe_.held.push_back(std::move(held));
    const char* begin = std::min(known->read.data(), held.read.data());
    const char* end = std::max(known->read.data() + known->read.size(), held.read.data() + held.read.size());
    known->read = {begin, end};
  }

  // As an ingredient. What is changed meanwhile is seen when the recipe is put on the tables.
  bool take_in(const RecipePointer& inner) {
    if (inner == nullptr || !recipe_memory()->has_recipe(inner->address) || inner->settings != recipe_.settings) return false;
    if (std::ranges::find(inner->held, recipe_.address, &Held::address) != inner->held.end()) return false;
    if (std::ranges::find(call_.ingredients, inner) != call_.ingredients.end()) return true;
    for (const Held& held : inner->held) add_held(held);
    call_.ingredients.push_back(inner);
    return true;
  }

  Recipe& recipe_;
  Call& call_;
};

// Null: it is not managed.
const void* place_of(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_behind(tensor);
  return storage == nullptr ? nullptr : recipe_memory()->place_of(*storage);
}

// Whether a batch norm's kernel computes the same without these statistics: it looks whether they are contiguous, and at the type of
// the first that is there of weights and statistics.
bool are_spared(const at::Tensor& statistics, at::ArrayRef<c10::IValue> arguments) {
  bool has_weight = arguments[1].isTensor() && arguments[1].toTensor().defined();
  const at::Tensor& first = arguments[has_weight ? 1 : 0].toTensor();
  return statistics.is_contiguous() && statistics.scalar_type() == first.scalar_type();
}

// Batch norms change running statistics while they train, and need their contents for nothing else. Otherwise they read them
// alone, but count as if they wrote there: false where a recipe would have to hold them.
bool leave_statistics(const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) {
  auto training = schema.argumentIndexWithName("training");
  if (!training) return true;
  bool trains = arguments[static_cast<std::size_t>(*training)].toBool();
  for (const char* name : {"running_mean", "running_var"}) {
    auto at = schema.argumentIndexWithName(name);
    if (!at) continue;
    c10::IValue& argument = arguments[static_cast<std::size_t>(*at)];
    if (trains && argument.isTensor() && argument.toTensor().defined() && !are_spared(argument.toTensor(), arguments))
      return false;
    if (trains) argument = c10::IValue();
    if (argument.isTensor() && place_of(argument.toTensor()) != nullptr) return false;
  }
  return true;
}

// Autocast calls the operator again, with other arguments: that call is the one to keep.
bool is_cast(const c10::OperatorHandle& op) {
  const DeviceMemory* device = the_device_memory();
  c10::DeviceType type = device == nullptr ? c10::DeviceType::CPU : device->device().type();
  c10::DispatchKey cast = at::autocast::get_autocast_dispatch_key_from_device_type(type);
  return !c10::impl::tls_is_dispatch_key_excluded(cast) && op.hasKernelForDispatchKey(cast);
}

// Autograd calls such hooks within the operator. What they allocate is not the kernel's, and none of it says whose it is.
bool saves_by_hooks() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty() && at::GradMode::is_enabled(); }

// False: it cannot be called again like this.
bool add_call(Recipe& recipe, const c10::OperatorHandle& op, at::ArrayRef<const c10::IValue> arguments) {
  std::vector<c10::IValue> given(arguments.begin(), arguments.end());
  if (!leave_statistics(op.schema(), given)) return false;
  Call call{op, {}, {}};
  Keeper keeper(recipe, call);
  for (const c10::IValue& argument : given) {
    auto kept = keeper.keep(argument);
    if (!kept) return false;
    call.arguments.push_back(std::move(*kept));
  }
  recipe.calls.push_back(std::move(call));
  return calls_of(recipe) <= kMostCalls;
}

// ---- making

[[noreturn]] void end_by(const CannotMake& error) {
  std::string what = std::string("making a storage anew by ") + error.what() +
                     "; go on from a checkpoint, without this operator (EBBTIDE_REMAKE=-" + error.op +
                     ") or without making anything anew (EBBTIDE_REMAKE=0)";
  fatal(what.c_str(), ENOTRECOVERABLE);
}

// Makes what is away of so many bytes from there, by its recipe alone. False: there is no memory for it.
bool make_one(const void* address, std::uint64_t nbytes) {
  const bool keeps = wants_all;
  std::uint64_t number = 0;
  RecipePointer recipe;
  for (int tries = 0; recipe == nullptr; ++tries) {
    if ((number = recipe_memory()->unmade_by(address, nbytes)) == 0) return true;
    recipe = recipe_of(recipe_memory()->storage_at(address));  // null: another thread made it meanwhile, and it left again
    if (tries == kMostTries) fatal("looking for the recipe of a storage that was given up", ENOENT);
  }
  std::int64_t begun = recipe_memory()->busy_ns();
  bool made = false, refused = false;
  for (bool again : {false, true}) {
    try {
      made = carry_out(*recipe, number, keeps, again);
      break;
    } catch (const CannotMake& error) {
      // Else another thread was faster, and what the recipe reads may have changed since.
      if (recipe_memory()->unmade_by(address, nbytes) == number) end_by(error);
      break;
    } catch (const c10::OutOfMemoryError& error) {
      const std::string& name = recipe->calls[0].op.schema().name();
      if (again && !(refused = recipe_memory()->refuse(recipe->address, name))) end_by(CannotMake(error.what(), name));
    }
  }
  recipe_memory()->made_anew(recipe_memory()->busy_ns() - begun);
  if (made && !keeps) give_up(take_off(recipe->address, recipe));
  discard(std::move(recipe));
  return !refused;
}

// Makes what is away of the storage there, if something is: of all of it, or of so many bytes from there. Its operators would make
// what is away of their operands, and so on: thousands may be away in a row, and a stack is short. So each is made before it is read,
// and where it has left again by then, its reader makes it after all. False: there is no memory for one of them.
bool make_here(const void* address, std::uint64_t nbytes) {
  struct Waiting {
    const void* address;
    std::uint64_t nbytes;
    RecipePointer recipe;  // keeps what it holds
    std::size_t seen = 0;  // of that
  };
  std::vector<Waiting> row;
  auto add = [&](const void* away, std::uint64_t bytes) {
    if (recipe_memory()->unmade_by(away, bytes) != 0) row.push_back({away, bytes, recipe_of(recipe_memory()->storage_at(away))});
  };
  for (add(address, nbytes); !row.empty();) {
    Waiting& last = row.back();
    if (last.recipe != nullptr && last.seen < last.recipe->held.size()) {
      std::span<const char> read = last.recipe->held[last.seen++].read;
      if (!read.empty()) add(read.data(), read.size());
      continue;
    }
    bool is_there = make_one(last.address, last.nbytes);
    discard(std::move(last.recipe));
    row.pop_back();
    if (is_there) continue;
    for (const Waiting& reader : row) recipe_memory()->refuse(reader.address, "an operator");
    return false;
  }
  return true;
}

void begin_maker() {
  block_sent_signals();  // an operator's own faults have to come
  round_so(kUsualRounding);
}

// The same. A thread that computes otherwise has another do it: those that share its operators may round as it does.
bool make(const void* address, std::uint64_t nbytes = 0) {
  if (!recipe_memory()->any_unmade()) return true;
  if (computes_as_usual()) return make_here(address, nbytes);
  bool made = false;
  std::thread([&] {
    begin_maker();
    made = make_here(address, nbytes);
  }).join();
  return made;
}

// Makes what is away of the storage there, and has it forget its recipe. False: that was not good for all of it any more.
bool forget(const void* address) {
  Forgotten forgotten;
  while ((forgotten = recipe_memory()->forget_recipe(address)) == Forgotten::NotYet) {
    if (!make(address))
      end_by(CannotMake("its operators: there is no memory for it, and what it is made of is about to change", ""));
  }
  return forgotten == Forgotten::Whole;
}

// Whether it is all of its storage. Another thread may write to the rest without an operator, while an operator changes this.
bool is_all(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

// Takes the recipe of what lies there, if it has one.
void take_recipe(const void* address) {
  if (recipe_of(address) == nullptr) return;
  forget(address);
  give_up(take_off(address));
}

// Somebody changes in place what lies there: its recipe stays on the tables, and is no good until it goes on. Null: it had none.
RecipePointer interrupt_recipe(const void* address) {
  RecipePointer recipe = recipe_of(address);
  if (recipe == nullptr) return nullptr;
  if (forget(address) && recipe_of(address) == recipe) return recipe;
  give_up(take_off(address));
  return nullptr;
}

// Somebody is about to write there: what is made of it is made now, or cannot be made any more.
void free_of_readers(const void* address) {
  for (const void* reader : readers_of(address)) take_recipe(reader);
}

// ---- the maker's thread

// An address, and whether somebody is about to write there.
constexpr std::uintptr_t kToWrite = 1;
std::array<std::atomic<std::uintptr_t>, 64> asked{};
std::mutex asking_mutex;
std::set<std::uintptr_t> attended;  // what the maker's threads are at
sem_t any_asked;
std::atomic<int> idle_makers = 0;

void start_thread();

// Who waits asks again and again: once is enough.
void attend(std::uintptr_t request) {
  {
    std::lock_guard lock(asking_mutex);
    if (!attended.insert(request).second) return;
  }
  auto* address = reinterpret_cast<const void*>(request & ~kToWrite);
  if ((request & kToWrite) != 0) {
    free_of_readers(address);
  } else {
    make(address);
  }
  std::lock_guard lock(asking_mutex);
  attended.erase(request);
}

// One is always idle: an operator that another runs may need what is away again by now.
void make_what_is_asked() {
  begin_maker();
  for (;;) {
    while (sem_wait(&any_asked) != 0) {}
    if (--idle_makers == 0) {
      try {
        start_thread();
      } catch (const std::system_error&) {  // no more threads may be begun: this one goes on, and is idle again later
        --idle_makers;
      }
    }
    for (std::atomic<std::uintptr_t>& place : asked) {
      if (std::uintptr_t request = place.exchange(0)) attend(request);
    }
    ++idle_makers;
  }
}

void start_thread() {
  ++idle_makers;
  std::thread(make_what_is_asked).detach();
}

void start_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    sem_init(&any_asked, 0, 0);
    start_thread();
  });
}

// The storage has this recipe from now on.
void begin_recipe(const std::shared_ptr<Recipe>& recipe, const RecipePointer& before) {
  if (!recipe_memory()->knows_by_object()) start_threads();
  recipe->checksum.reset();  // of what it went on with
  if (checks_what_is_made) recipe->checksum = recipe_memory()->checksum_of(recipe->address);
  put_on(recipe, before);
}

}  // namespace

// ---- operators

std::unique_ptr<KeptCall> KeptCall::of(const c10::OperatorHandle& op, at::ArrayRef<const c10::IValue> arguments,
                                       RecipePointer changed, std::uint64_t version) {
  auto made = changed != nullptr ? std::make_shared<Recipe>(*changed) : std::make_shared<Recipe>();
  // Than its kernel: a mode calls that, or others.
  bool is_more = c10::impl::TorchDispatchModeTLS::any_modes_set() || is_cast(op) || saves_by_hooks();
  bool changes = changes_ended != made->changes || version != version_of_operators() || made->settings != Settings();
  if (is_more || changes || !computes_as_usual() || !add_call(*made, op, arguments)) {
    if (changed != nullptr) give_up(take_off(changed->address));
    return nullptr;
  }
  auto kept = std::unique_ptr<KeptCall>(new KeptCall);
  kept->made_ = std::move(made);
  kept->changed_ = std::move(changed);
  kept->exceptions_ = std::uncaught_exceptions();
  return kept;
}

KeptCall::~KeptCall() {
  bool ended = std::uncaught_exceptions() == exceptions_ && !births_.are_spoiled();
  if (changed_ != nullptr) {
    ended ? begin_recipe(made_, changed_) : give_up(take_off(changed_->address));
    return;
  }
  if (!ended) return;
  const std::vector<const void*>& addresses = births_.addresses();
  for (std::size_t i = addresses.size(); i-- > 0;) {  // of several at one address the last lives
    if (addresses[i] == nullptr || recipe_of(addresses[i]) != nullptr || !recipe_memory()->wants_recipe(addresses[i]))
      continue;  // an inner operator made it
    if (!readers_of(addresses[i]).empty()) continue;  // an inner operator's recipe may be all that keeps it: then it is no result
    auto recipe = std::make_shared<Recipe>(*made_);
    recipe->address = addresses[i];
    recipe->nbytes = recipe_memory()->size_of(addresses[i]);
    recipe->birth = i;
    begin_recipe(recipe, nullptr);
  }
}

void forget_ended() {
  for (const void* address : recipe_memory()->ended()) forget_recipes_of(address);
}

RecipePointer prepare_for(at::ArrayRef<const c10::IValue> arguments, const std::vector<Use>& uses, bool writes_all,
                          bool changed) {
  give_up_discarded();
  forget_ended();
  RecipePointer goes_on;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    Access access = i < uses.size() ? uses[i].access : Access::ReadWrite;
    bool writes = writes_all || (static_cast<int>(access) & static_cast<int>(Access::Write)) != 0;
    for_each_part(arguments[i], [&](const at::Tensor& part) {
      const void* place = place_of(part);
      if (place == nullptr || part.numel() == 0) return;
      std::span<const char> memory = recipe_memory()->reach_of(part, place);
      bool is_there = make(memory.data(), memory.size());  // else the operator cannot have it, and fails
      if (!is_there || !writes || off_the_record) return;  // what makes contents anew writes to memory that nobody knows
      const void* address = recipe_memory()->storage_at(memory.data());
      free_of_readers(address);
      if (changed && i == 0 && is_all(part)) {
        goes_on = interrupt_recipe(address);
      } else if (goes_on == nullptr || goes_on->address != address) {
        take_recipe(address);
      }
    });
  }
  return goes_on;
}

void forget_recipes_of(const void* address) {
  free_of_readers(address);
  give_up(take_off(address));
}

bool make_anew(const void* address) { return make(address); }

bool give_away(const void* address) {
  if (!make(address)) return false;
  for (const void* reader : readers_of(address)) {
    if (!make(reader)) return false;
  }
  free_of_readers(address);
  take_recipe(address);
  return true;
}

void ask_to_make(const void* address, bool to_write) {
  std::uintptr_t request = reinterpret_cast<std::uintptr_t>(address) | (to_write ? kToWrite : 0);
  for (std::atomic<std::uintptr_t>& place : asked) {
    std::uintptr_t nobody = 0;
    if (place.load() == request || place.compare_exchange_strong(nobody, request)) break;
  }
  sem_post(&any_asked);
}

void want_all_recipes(bool all, unsigned one_in) {
  wants_all = all;
  recipe_memory()->want_all_recipes(all, one_in);
}

void check_what_is_made(bool check) { checks_what_is_made = check; }

void begin_change() { ++changes_begun; }

void end_change() { ++changes_ended; }

void make_all() {
  if (recipe_memory() == nullptr) return;
  forget_ended();
  while (const void* address = any_with_recipe()) take_recipe(address);
  give_up_discarded();
}

}  // namespace ebbtide
