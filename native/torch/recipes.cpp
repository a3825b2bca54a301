#include "recipes.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/List.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "../core/checksum.hpp"

namespace ebbtide {

namespace {

// What an operator's result depends on besides its arguments.
struct Settings {
  int threads = at::get_num_threads();
  bool deterministic = at::globalContext().deterministicAlgorithms();
  bool onednn = at::globalContext().userEnabledMkldnn();
  bool onednn_deterministic = at::globalContext().deterministicMkldnn();
  at::Float32Precision products = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  at::Float32Precision convolutions = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV);
  caffe2::TypeMeta default_type = c10::get_default_dtype();
  unsigned rounding = rounding_now();

  bool operator==(const Settings&) const = default;

  static unsigned rounding_now() {  // and what becomes of denormal numbers
#if defined(__x86_64__)
    return _mm_getcsr() & ~unsigned{_MM_EXCEPT_MASK};
#else
    return 0;
#endif
  }
  // Each thread has its own, and those that share its work have others.
  bool rounds_as_usual() const {
#if defined(__x86_64__)
    return rounding == _MM_MASK_MASK;
#else
    return true;
#endif
  }
};

struct Call {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // its tensors lie in the memory that the script's lay in, and own none of it
};

// Memory that a recipe reads. Its StorageImpl is held, and no tensor: autograd asks who else has a tensor.
struct Held {
  c10::intrusive_ptr<c10::StorageImpl> storage;  // which may be a slice
  const void* address;                           // of the whole
};

}  // namespace

struct Recipe {
  void* address = nullptr;  // of the storage
  std::size_t nbytes = 0;
  std::size_t birth = 0;  // which of the first call's births it is
  std::vector<Call> calls;
  std::vector<Held> held;
  Settings settings;
  std::optional<std::uint32_t> checksum;  // of the contents
};

namespace {

using RecipePointer = std::shared_ptr<Recipe>;

// Guards the tables below. Nobody runs an operator, or gives memory back, while he holds it.
std::mutex mutex;
std::map<const void*, RecipePointer> recipes;             // by the storage they make
std::map<const void*, std::vector<const void*>> readers;  // by the memory that is held, the storages made of it
std::set<std::uintptr_t> attended;                        // what the maker's threads are at
std::vector<RecipePointer> discarded;  // by the maker's thread, which must not give up a reference: that may take the GIL

void count() { recipes_kept = recipes.size() + discarded.size(); }

constexpr int kMostTries = 1000;
constexpr std::size_t kMostCalls = 16;  // of a recipe: what is changed at each step would have more and more
constexpr std::uintptr_t kAlignment = 64;  // of operands, to which bits may be due
thread_local bool is_maker = false;
thread_local Births* births = nullptr;

std::atomic<bool> checks_what_is_made = false;
std::atomic<bool> wants_all = false;

std::uint32_t checksum_of(const void* memory, std::size_t nbytes) {
  Checksum sum;
  std::size_t whole = nbytes / Checksum::kUnit * Checksum::kUnit;
  alignas(8) std::array<char, Checksum::kUnit> rest{};
  std::memcpy(rest.data(), static_cast<const char*>(memory) + whole, nbytes - whole);
  sum.add(memory, whole);
  sum.add(rest.data(), rest.size());
  return sum.value();
}

// ---- keeping

std::size_t least_managed() { return the_allocator()->min_bytes.load(std::memory_order_relaxed); }

at::Tensor tensor_in(c10::Storage storage, const at::Tensor& like) {
  auto made =
      at::detail::make_tensor<at::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// The same tensor in memory that others own.
at::Tensor alias_of(const at::Tensor& tensor, void* memory, std::size_t nbytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(memory, c10::Device(c10::DeviceType::CPU)), nullptr,
                       false);
  return tensor_in(std::move(storage), tensor);
}

// The same tensor in a copy of its storage.
at::Tensor copy_of(const at::Tensor& tensor, const void* memory, std::size_t nbytes) {
  c10::DataPtr data = c10::GetAllocator(c10::DeviceType::CPU)->allocate(nbytes);
  if (nbytes > 0) std::memcpy(data.get(), memory, nbytes);
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(data), nullptr, false);
  return tensor_in(std::move(storage), tensor);
}

constexpr c10::DispatchKeySet kAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView;

bool is_plain(const at::Tensor& tensor) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.has_storage() &&
         impl.key_set() - kAbove - c10::autocast_dispatch_keyset == c10::DispatchKeySet(c10::DispatchKey::CPU) &&
         !impl.has_symbolic_sizes_strides() && !impl.is_python_dispatch();
}

// An argument as it can be used again, or nothing. What it holds is added to the recipe.
class Keeper {
 public:
  explicit Keeper(Recipe& recipe) : recipe_(recipe) {}

  std::optional<c10::IValue> keep(const c10::IValue& value) {
    if (value.isTensor()) {
      auto kept = keep_tensor(value.toTensor());
      return kept ? std::optional(c10::IValue(*kept)) : std::nullopt;
    }
    if (value.isGenerator() || value.isObject() || value.isPyObject() || value.isStorage()) return std::nullopt;
    if (value.isTensorList()) {
      c10::List<at::Tensor> kept;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        auto one = keep_tensor(tensor);
        if (!one) return std::nullopt;
        kept.push_back(*one);
      }
      return c10::IValue(kept);
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> kept;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        auto one = tensor ? keep_tensor(*tensor) : std::optional(at::Tensor());
        if (!one) return std::nullopt;
        kept.push_back(one->defined() ? std::optional(*one) : std::nullopt);
      }
      return c10::IValue(kept);
    }
    return value;  // a number, a string, a list of them: boxed for this call alone
  }

 private:
  std::optional<at::Tensor> keep_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return at::Tensor();
    if (!is_plain(tensor)) return std::nullopt;
    c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    void* memory = storage->_mutable_data_ptr_no_checks().get();
    std::size_t nbytes = storage->nbytes();
    if (memory != nullptr && the_arena()->contains(memory)) {
      if (the_arena()->is_pinned_from_outside(memory)) return std::nullopt;
      const void* whole = the_arena()->storage_at(memory);
      if (std::ranges::find(recipe_.held, whole, &Held::address) == recipe_.held.end()) {
        recipe_.held.push_back({c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage), whole});
      }
      return alias_of(tensor, memory, nbytes);
    }
    if (nbytes >= least_managed() || reinterpret_cast<std::uintptr_t>(memory) % kAlignment != 0) return std::nullopt;
    return copy_of(tensor, memory, nbytes);
  }

  Recipe& recipe_;
};

// Batch norms change running statistics, and need them for nothing else while they train.
void leave_statistics(const c10::FunctionSchema& schema, std::vector<c10::IValue>& arguments) {
  auto training = schema.argumentIndexWithName("training");
  if (!training || !arguments[static_cast<std::size_t>(*training)].toBool()) return;
  for (const char* name : {"running_mean", "running_var"}) {
    if (auto at = schema.argumentIndexWithName(name)) arguments[static_cast<std::size_t>(*at)] = c10::IValue();
  }
}

bool add_call(Recipe& recipe, const c10::OperatorHandle& op, at::ArrayRef<const c10::IValue> arguments) {
  std::vector<c10::IValue> given(arguments.begin(), arguments.end());
  leave_statistics(op.schema(), given);
  Keeper keeper(recipe);
  Call call{op, {}};
  for (const c10::IValue& argument : given) {
    auto kept = keeper.keep(argument);
    if (!kept) return false;
    call.arguments.push_back(std::move(*kept));
  }
  recipe.calls.push_back(std::move(call));
  return true;
}

// Takes it off the tables. Callers let go of what it holds when they hold no mutex.
RecipePointer take_off(const void* address) {
  std::lock_guard lock(mutex);
  auto found = recipes.find(address);
  if (found == recipes.end()) return nullptr;
  RecipePointer recipe = std::move(found->second);
  recipes.erase(found);
  count();
  for (const Held& held : recipe->held) {
    auto reads = readers.find(held.address);
    std::erase(reads->second, address);
    if (reads->second.empty()) readers.erase(reads);
  }
  return recipe;
}

// This thread needs it no more.
void discard(RecipePointer recipe) {
  if (!is_maker) return;
  std::lock_guard lock(mutex);
  discarded.push_back(std::move(recipe));
  count();
}

void give_up(RecipePointer recipe) {
  if (recipe == nullptr) return;
  for (const Held& held : recipe->held) the_arena()->unguard(held.address);
  discard(std::move(recipe));
}

void give_up_discarded() {
  std::vector<RecipePointer> all;
  std::lock_guard lock(mutex);
  all.swap(discarded);
  count();
}

void start_threads();

void put_on(RecipePointer recipe) {
  start_threads();
  if (checks_what_is_made) recipe->checksum = checksum_of(recipe->address, recipe->nbytes);
  for (const Held& held : recipe->held) the_arena()->guard(held.address);
  void* address = recipe->address;
  {
    std::lock_guard lock(mutex);
    for (const Held& held : recipe->held) readers[held.address].push_back(address);
    recipes[address] = recipe;
    count();
    if (the_arena()->keep_recipe(address)) return;  // under the mutex: who takes it off the tables finds it kept, or not
  }
  give_up(take_off(address));
}

RecipePointer recipe_of(const void* address) {
  std::lock_guard lock(mutex);
  auto found = recipes.find(address);
  return found == recipes.end() ? nullptr : found->second;
}

std::vector<const void*> readers_of(const void* address) {
  std::lock_guard lock(mutex);
  auto found = readers.find(address);
  return found == readers.end() ? std::vector<const void*>() : found->second;
}

// ---- making

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

// Runs the recipe and hands the result over. False: another thread did so meanwhile. Throws what an operator throws.
bool carry_out(const Recipe& recipe, std::uint64_t absence) {
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
  return the_arena()->hand_over(made, recipe.address, absence, wants_all);
}

[[noreturn]] void cannot_make(const Recipe& recipe, const char* why) {
  std::string what = "making a storage anew by " + recipe.calls[0].op.schema().name() + ": " + why +
                     "; go on from a checkpoint, without making anything anew (EBBTIDE_REMAKE=0)";
  fatal(what.c_str(), ENOTRECOVERABLE);
}

// Makes what is away there.
void make(const void* address) {
  if (the_arena()->unmade() == 0) return;
  std::uint64_t absence = 0;
  RecipePointer recipe;
  for (int tries = 0; recipe == nullptr; ++tries) {
    if ((absence = the_arena()->absence_of(address)) == 0) return;
    recipe = recipe_of(address);  // null: another thread made it meanwhile, and it left again
    if (tries == kMostTries) fatal("looking for the recipe of a storage that was given up", ENOENT);
  }
  std::int64_t begun = the_arena()->busy_ns();
  Births* outer = std::exchange(births, nullptr);
  bool made = false;
  try {
    made = carry_out(*recipe, absence);
  } catch (const std::exception& error) {
    // Else another thread was faster, and what the recipe reads may have changed since.
    if (the_arena()->absence_of(address) == absence) cannot_make(*recipe, error.what());
  }
  births = outer;
  the_arena()->made_anew(the_arena()->busy_ns() - begun);
  if (made && !wants_all) give_up(take_off(address));
  discard(std::move(recipe));
}

// Takes the recipe of what lies there, which is made first if it is away. Null: it had none, or it was not good any more.
RecipePointer take_recipe(const void* address) {
  if (recipe_of(address) == nullptr) return nullptr;
  bool was_good = false;
  while (!(was_good = the_arena()->forget_recipe(address)) && the_arena()->absence_of(address) != 0) make(address);
  RecipePointer recipe = take_off(address);
  give_up(recipe);
  return was_good ? recipe : nullptr;
}

// Somebody changes in place what lies there: its recipe stays on the tables, and is no good until it goes on. Null: it had none.
RecipePointer interrupt_recipe(const void* address) {
  RecipePointer recipe = recipe_of(address);
  if (recipe == nullptr) return nullptr;
  bool was_good = false;
  while (!(was_good = the_arena()->forget_recipe(address)) && the_arena()->absence_of(address) != 0) make(address);
  if (was_good && recipe_of(address) == recipe) return recipe;
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
sem_t any_asked;
std::atomic<int> idle_makers = 0;

void start_thread();

// Who waits asks again and again: once is enough.
void attend(std::uintptr_t request) {
  {
    std::lock_guard lock(mutex);
    if (!attended.insert(request).second) return;
  }
  auto* address = reinterpret_cast<const void*>(request & ~kToWrite);
  (request & kToWrite) != 0 ? free_of_readers(address) : make(address);
  std::lock_guard lock(mutex);
  attended.erase(request);
}

// One is always idle: an operator that another runs may need what is away again by now.
void make_what_is_asked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  is_maker = true;
  for (;;) {
    while (sem_wait(&any_asked) != 0) {}
    if (--idle_makers == 0) start_thread();
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

}  // namespace

// ---- births

Births::Births() : outer_(std::exchange(births, this)) {}

Births::~Births() {
  births = outer_;
  if (outer_ != nullptr) outer_->addresses_.insert(outer_->addresses_.end(), addresses_.begin(), addresses_.end());
}

void Births::look_at_inner(bool repeats) {
  if (births == nullptr) return;
  bool above_autograd = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
  if (repeats && !above_autograd) return;
  for (Births* each = births; each != nullptr; each = each->outer_) each->spoiled_ = true;
}

void Births::note(void* address) {
  if (births != nullptr) births->addresses_.push_back(address);
}

// ---- operators

std::unique_ptr<KeptCall> KeptCall::of(const c10::OperatorHandle& op, at::ArrayRef<const c10::IValue> arguments) {
  auto made = std::make_shared<Recipe>();
  if (!made->settings.rounds_as_usual() || !add_call(*made, op, arguments)) return nullptr;
  auto kept = std::unique_ptr<KeptCall>(new KeptCall);
  kept->made_ = std::move(made);
  kept->exceptions_ = std::uncaught_exceptions();
  return kept;
}

KeptCall::~KeptCall() {
  bool ended = std::uncaught_exceptions() == exceptions_ && !births_.are_spoiled();
  if (changed_ != nullptr) {
    // Gone: another thread has written to it, or to what it is made of, in the meantime.
    RecipePointer own = take_off(changed_->address);
    if (own != changed_) ended = false;
    give_up(std::move(own));
    if (!ended || changed_->settings != made_->settings || changed_->calls.size() == kMostCalls) return;
    auto longer = std::make_shared<Recipe>(*changed_);
    longer->calls.push_back(std::move(made_->calls[0]));
    for (Held& held : made_->held) {
      bool known = std::ranges::find(longer->held, held.address, &Held::address) != longer->held.end();
      if (held.address != longer->address && !known) longer->held.push_back(std::move(held));
    }
    put_on(std::move(longer));
    return;
  }
  if (!ended) return;
  const std::vector<void*>& addresses = births_.addresses();
  for (std::size_t i = addresses.size(); i-- > 0;) {  // of several at one address the last lives
    if (recipe_of(addresses[i]) != nullptr || !the_arena()->wants_recipe(addresses[i])) continue;  // an inner operator made it
    auto recipe = std::make_shared<Recipe>(*made_);
    recipe->address = addresses[i];
    recipe->nbytes = the_arena()->size_of(addresses[i]);
    recipe->birth = i;
    put_on(std::move(recipe));
  }
}

namespace {

template <typename Visit>
void each_memory(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    for_each_part(value.toTensor(), [&](const at::Tensor& part) {
      if (const void* address = managed_storage(part)) visit(the_arena()->storage_at(address));
    });
  } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_memory(element, visit);
  }
}

}  // namespace

RecipePointer prepare_for(at::ArrayRef<const c10::IValue> arguments, const std::vector<Use>& uses, bool writes_all,
                          bool changed) {
  give_up_discarded();
  RecipePointer goes_on;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    Access access = i < uses.size() ? uses[i].access : Access::ReadWrite;
    bool writes = writes_all || (static_cast<int>(access) & static_cast<int>(Access::Write)) != 0;
    each_memory(arguments[i], [&](const void* address) {
      make(address);
      if (!writes) return;
      free_of_readers(address);
      if (changed && i == 0) {
        goes_on = interrupt_recipe(address);
      } else if (goes_on == nullptr || goes_on->address != address) {
        take_recipe(address);
      }
    });
  }
  return goes_on;
}

void forget_interrupted(const RecipePointer& recipe) { give_up(take_off(recipe->address)); }

void forget_recipes_of(const void* address) {
  free_of_readers(address);
  give_up(take_off(address));
}

void make_anew(const void* address) { make(address); }

void ask_to_make(const void* address, bool to_write) {
  std::uintptr_t request = reinterpret_cast<std::uintptr_t>(address) | (to_write ? kToWrite : 0);
  for (std::atomic<std::uintptr_t>& place : asked) {
    std::uintptr_t nobody = 0;
    if (place.load() == request || place.compare_exchange_strong(nobody, request)) break;
  }
  sem_post(&any_asked);
}

void want_all_recipes(bool all) {
  wants_all = all;
  the_arena()->want_all_recipes(all);
}

void check_what_is_made(bool check) { checks_what_is_made = check; }

void make_all() {
  for (;;) {
    const void* address = nullptr;
    {
      std::lock_guard lock(mutex);
      if (recipes.empty()) break;
      address = recipes.begin()->first;
    }
    take_recipe(address);
  }
  give_up_discarded();
}

}  // namespace ebbtide
