// What seeing every launch costs: operators by RecordFunction with their inputs, kernels by CUPTI's driver callbacks.
//
// Called through ctypes by probe.py. CUPTI is loaded at run time, so that this builds and loads where there is none. Left
// out: descriptors that hold addresses (TMA), launches of graphs; both are counted by nothing here.
#include <ATen/record_function.h>
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

std::atomic<std::uint64_t> operators{0}, launches{0}, hits{0}, unreadable{0};
// Hits by who named the storage: an operand or result of an operator under way; nobody, but it was an operand before; nobody.
std::atomic<std::uint64_t> announced{0}, missed{0}, unknown{0};
at::CallbackHandle recording = 0;
CUpti_SubscriberHandle subscriber = nullptr;
std::uint64_t low = 0, high = 0;
bool scanning = false;

using ParamInfo = CUresult (*)(CUfunction, size_t, size_t*, size_t*);
ParamInfo parameter_info = nullptr;

using Storage = std::pair<std::uint64_t, std::uint64_t>;  // first byte, one past the last

bool holds(const Storage& s, std::uint64_t word) { return word >= s.first && word < s.second; }

// An operator under way on this thread: what it was given, and what its kernels touched that nobody had named by then.
struct Frame {
  std::vector<Storage> named;
  std::vector<std::uint64_t> pending;
};
thread_local std::vector<Frame> frames;

std::mutex seen_mutex;
std::map<std::uint64_t, std::uint64_t> seen;  // storages that were named at any time; stale ones make missed an upper bound

template <typename Values>
void name_storages(Frame& frame, const Values& values) {
  const auto one = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto first = reinterpret_cast<std::uint64_t>(tensor.storage().data());
    frame.named.emplace_back(first, first + tensor.storage().nbytes());
    std::lock_guard lock(seen_mutex);
    seen[first] = std::max(seen[first], first + tensor.storage().nbytes());
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) one(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) one(tensor);
  }
}

void nobody_named(std::uint64_t word) {
  std::lock_guard lock(seen_mutex);
  auto after = seen.upper_bound(word);
  const bool before = after != seen.begin() && holds({std::prev(after)->first, std::prev(after)->second}, word);
  ++(before ? missed : unknown);
}

void hit(std::uint64_t word) {
  ++hits;
  const auto names = [&](const Frame& f) { return std::any_of(f.named.begin(), f.named.end(), [&](const Storage& s) { return holds(s, word); }); };
  if (std::any_of(frames.begin(), frames.end(), names)) {
    ++announced;
  } else if (frames.empty()) {
    nobody_named(word);
  } else {
    frames.back().pending.push_back(word);  // perhaps a result
  }
}

std::unique_ptr<at::ObserverContext> count_only(const at::RecordFunction& f) {
  operators += f.inputs().empty() ? 0 : 1;
  return nullptr;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& f) {
  count_only(f);
  frames.emplace_back();
  name_storages(frames.back(), f.inputs());
  return nullptr;
}

void on_end(const at::RecordFunction& f, at::ObserverContext*) {
  if (frames.empty()) return;  // it began before the callback was added
  Frame ended = std::move(frames.back());
  frames.pop_back();
  name_storages(ended, f.outputs());
  for (const std::uint64_t word : ended.pending) {
    if (std::any_of(ended.named.begin(), ended.named.end(), [&](const Storage& s) { return holds(s, word); })) {
      ++announced;
    } else if (frames.empty()) {
      nobody_named(word);
    } else {
      frames.back().pending.push_back(word);
    }
  }
}

void scan_words(const std::uint64_t* words, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (words[i] >= low && words[i] < high) hit(words[i]);
}

// Compares every aligned word of every parameter with the range; offsets are within the parameter buffer, not needed here.
void scan(CUfunction function, void** parameters) {
  if (parameters == nullptr || parameter_info == nullptr) {
    ++unreadable;  // given as one packed buffer, or a driver before 12.4
    return;
  }
  for (size_t i = 0;; ++i) {
    size_t offset = 0, size = 0;
    if (parameter_info(function, i, &offset, &size) != CUDA_SUCCESS) return;
    const auto* words = static_cast<const std::uint64_t*>(parameters[i]);
    scan_words(words, size / 8);
  }
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain, CUpti_CallbackId id, const void* raw) {
  const auto* data = static_cast<const CUpti_CallbackData*>(raw);
  if (data->callbackSite != CUPTI_API_ENTER) return;
  ++launches;
  if (!scanning) return;
  if (id == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel) {
    const auto* call = static_cast<const cuLaunchKernel_params*>(data->functionParams);
    scan(call->f, call->kernelParams);
  } else {
    const auto* call = static_cast<const cuLaunchKernelEx_params*>(data->functionParams);
    scan(call->f, call->kernelParams);
  }
}

void* symbol(const char* name) {
  static void* library = [] {
    for (const char* file : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"})
      if (void* found = dlopen(file, RTLD_NOW)) return found;
    return static_cast<void*>(nullptr);
  }();
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace

extern "C" void hook_reset() { operators = launches = hits = unreadable = announced = missed = unknown = 0; }
extern "C" int hook_announced() { return static_cast<int>(announced); }
extern "C" int hook_missed() { return static_cast<int>(missed); }
extern "C" int hook_unknown() { return static_cast<int>(unknown); }
extern "C" int hook_operators() { return static_cast<int>(operators); }
extern "C" int hook_launches() { return static_cast<int>(launches); }
extern "C" int hook_hits() { return static_cast<int>(hits); }
extern "C" int hook_unreadable() { return static_cast<int>(unreadable); }

// mode 0: no callback; 1: counts operators with inputs; 2: keeps what they name, for scanned launches to be compared with.
extern "C" void hook_record(int mode) {
  if (recording != 0) at::removeCallback(recording);
  recording = 0;
  if (mode == 0) return;
  auto callback = mode == 1 ? at::RecordFunctionCallback(count_only) : at::RecordFunctionCallback(on_start, on_end).needsOutputs(true);
  recording = at::addGlobalCallback(callback.needsInputs(true));
}

// As if a kernel had been launched with these words, for where there is no CUPTI.
extern "C" void hook_scan(const std::uint64_t* words, std::size_t count, std::uint64_t from, std::uint64_t to) {
  low = from;
  high = to;
  scan_words(words, count);
}

// mode 0: unsubscribes; 1: counts launches; 2: scans their parameters too. Returns 0, CUPTI's error, or -1 where there is none.
extern "C" int hook_cupti(int mode, std::uint64_t from, std::uint64_t to) {
  const auto subscribe = reinterpret_cast<decltype(&cuptiSubscribe)>(symbol("cuptiSubscribe"));
  const auto unsubscribe = reinterpret_cast<decltype(&cuptiUnsubscribe)>(symbol("cuptiUnsubscribe"));
  const auto enable = reinterpret_cast<decltype(&cuptiEnableCallback)>(symbol("cuptiEnableCallback"));
  if (subscribe == nullptr || unsubscribe == nullptr || enable == nullptr) return -1;
  if (subscriber != nullptr) unsubscribe(subscriber);
  subscriber = nullptr;
  if (mode == 0) return 0;
  low = from;
  high = to;
  scanning = mode == 2;
  parameter_info = reinterpret_cast<ParamInfo>(dlsym(RTLD_DEFAULT, "cuFuncGetParamInfo"));
  if (parameter_info == nullptr)
    if (void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) parameter_info = reinterpret_cast<ParamInfo>(dlsym(driver, "cuFuncGetParamInfo"));
  if (const CUptiResult error = subscribe(&subscriber, on_call, nullptr); error != CUPTI_SUCCESS) return static_cast<int>(error);
  for (const CUpti_CallbackId id : {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx})
    if (const CUptiResult error = enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id); error != CUPTI_SUCCESS) return static_cast<int>(error);
  return 0;
}
