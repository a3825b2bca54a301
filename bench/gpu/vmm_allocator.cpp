// An allocator for torch.cuda.memory.CUDAPluggableAllocator that gives every storage a handle of its own, 2 MiB-aligned.
//
// With it the phase `bits` asks whether addresses of the design's alignment change results. What is freed is parked for the
// next storage of its size on its stream, which is what stream order allows; handles are given back only when none is left.
// Left out: record_stream (storages used on two streams), statistics, captures.
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "driver.hpp"

namespace {

using gpu::driver;

constexpr std::size_t kGranule = 2ull << 20;

struct Slot {
  CUmemGenericAllocationHandle handle = 0;
  std::size_t bytes = 0;
};

struct State {
  std::mutex mutex;
  CUcontext context = nullptr;
  CUdevice device = 0;
  std::unordered_map<CUdeviceptr, Slot> slots;
  std::map<std::pair<std::size_t, void*>, std::vector<CUdeviceptr>> parked;
};

State& state() {
  static auto* the = [] {
    auto* fresh = new State;  // leaked: tensors may be freed after static destructors
    const char* library = std::getenv("EBBTIDE_PROBE_DRIVER");
    gpu::load_driver(library == nullptr ? "libcuda.so.1" : library);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&fresh->device, 0));
    MUST(cuDevicePrimaryCtxRetain(&fresh->context, fresh->device));
    return fresh;
  }();
  return *the;
}

CUresult make(State& s, std::size_t bytes, CUdeviceptr* at) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {s.device}};
  CUmemGenericAllocationHandle handle = 0;
  if (const CUresult error = driver.cuMemCreate(&handle, bytes, &prop, 0); error != CUDA_SUCCESS) return error;
  MUST(cuMemAddressReserve(at, bytes, 0, 0, 0));
  MUST(cuMemMap(*at, bytes, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemSetAccess(*at, bytes, &access, 1));
  s.slots[*at] = {handle, bytes};
  return CUDA_SUCCESS;
}

void give_all_back(State& s) {
  MUST(cuCtxSynchronize());
  for (auto& [key, list] : s.parked) {
    for (const CUdeviceptr at : list) {
      const Slot slot = s.slots.at(at);
      MUST(cuMemUnmap(at, slot.bytes));
      MUST(cuMemRelease(slot.handle));
      MUST(cuMemAddressFree(at, slot.bytes));
      s.slots.erase(at);
    }
    list.clear();
  }
}

}  // namespace

extern "C" void* vmm_malloc(ssize_t size, int, void* stream) {
  if (size <= 0) return nullptr;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const std::size_t bytes = (static_cast<std::size_t>(size) + kGranule - 1) / kGranule * kGranule;
  auto& list = s.parked[{bytes, stream}];
  if (!list.empty()) {
    const CUdeviceptr at = list.back();
    list.pop_back();
    return reinterpret_cast<void*>(at);
  }
  MUST(cuCtxSetCurrent(s.context));
  CUdeviceptr at = 0;
  CUresult error = make(s, bytes, &at);
  if (error == CUDA_ERROR_OUT_OF_MEMORY) {
    give_all_back(s);
    error = make(s, bytes, &at);
  }
  if (error != CUDA_SUCCESS) gpu::stop("no device memory for " + std::to_string(bytes) + " bytes: " + gpu::name_of(error));
  return reinterpret_cast<void*>(at);
}

extern "C" void vmm_free(void* pointer, std::size_t, int, void* stream) {
  if (pointer == nullptr) return;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto at = reinterpret_cast<CUdeviceptr>(pointer);
  s.parked[{s.slots.at(at).bytes, stream}].push_back(at);
}

// How many storages have handles of their own: that the bytes of a run really came from here.
extern "C" std::size_t vmm_slots() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return s.slots.size();
}
