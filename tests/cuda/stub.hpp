// What stands in for libc10_cuda.so and the CUDA runtime where there is none: the few functions that the front calls, a
// native allocator that notes what it is asked for, and an arena.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "device/faces.hpp"

namespace stub {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;

// Of the calling thread.
extern thread_local DeviceIndex device;
extern thread_local std::int64_t stream;

extern std::atomic<std::int64_t> capturing;        // the stream that is; 0: none
extern std::atomic<cudaError_t> capturing_error;   // what the question is answered with instead
extern std::atomic<cudaError_t> last_error;
extern std::atomic<std::size_t> free_bytes, total_bytes;
extern std::atomic<int> copies_that_name_both;

inline cudaStream_t handle(std::int64_t stream) { return reinterpret_cast<cudaStream_t>(stream); }
c10::cuda::CUDAStream stream_of(DeviceIndex device, std::int64_t stream);

// Memory of its own, at addresses that nobody reads. Each call is noted with its arguments.
class Native final : public native::CUDAAllocator {
 public:
  std::vector<std::string> take_notes();
  std::size_t live() const;

  std::atomic<bool> refuses = false;  // the next pool
  std::string called = "native";
  double fraction = 1;
  native::DeviceStats stats;

  DataPtr allocate(size_t bytes) override;
  bool is_simple_data_ptr(const DataPtr& data) const override { return note("is_simple_data_ptr", data.get()), true; }
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override { note("copy_data", to, from, bytes); }

  bool initialized() override { return note("initialized"), true; }
  void emptyCache(MempoolId_t pool) override { note("emptyCache", pool.first, pool.second); }
  native::DeviceStats getDeviceStats(DeviceIndex on) override { return note("getDeviceStats", int{on}), stats; }
  void resetAccumulatedStats(DeviceIndex on) override { note("resetAccumulatedStats", int{on}); }
  void resetPeakStats(DeviceIndex on) override { note("resetPeakStats", int{on}); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex on) override {
    return note("getMemoryInfo", int{on}), std::pair<size_t, size_t>(free_bytes, total_bytes);
  }
  using native::CUDAAllocator::recordStream;

  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t on) override;
  void raw_delete(void* at) override;
  void init(int devices) override { note("init", devices); }
  double getMemoryFraction(DeviceIndex on) override { return note("getMemoryFraction", int{on}), fraction; }
  void setMemoryFraction(double to, DeviceIndex on) override { note("setMemoryFraction", to, int{on}), fraction = to; }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex on) override {
    return note("getExpandableSegmentSizes", int{on}), std::vector<native::StreamSegmentSize>{};
  }
  void enable(bool value) override { note("enable", value); }
  bool isEnabled() const override { return note("isEnabled"), true; }
  void cacheInfo(DeviceIndex on, size_t* largest) override { note("cacheInfo", int{on}), *largest = 77; }
  void* getBaseAllocation(void* at, size_t* bytes) override { return note("getBaseAllocation", at), *bytes = 1, at; }
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream on) override { note("recordStream", data.get(), on.id()); }
  native::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override {
    note("snapshot", pool.first, pool.second, traces);
    native::SnapshotInfo taken;
    taken.segments.emplace_back();
    return taken;
  }
  void beginAllocateToPool(DeviceIndex on, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    note("beginAllocateToPool", int{on}, pool.first, pool.second, filter != nullptr);
    TORCH_CHECK(!refuses.exchange(false), "no more pools");
  }
  void endAllocateToPool(DeviceIndex on, MempoolId_t pool) override {
    note("endAllocateToPool", int{on}, pool.first, pool.second);
  }
  void releasePool(DeviceIndex on, MempoolId_t pool) override { note("releasePool", int{on}, pool.first, pool.second); }
  int getPoolUseCount(DeviceIndex on, MempoolId_t pool) override { return note("getPoolUseCount", int{on}, pool.second), 3; }
  void createOrIncrefPool(DeviceIndex on, MempoolId_t pool, std::shared_ptr<CUDAAllocator> of) override {
    note("createOrIncrefPool", int{on}, pool.second, of.get());
  }
  void setUseOnOOM(DeviceIndex on, MempoolId_t pool, bool use) override { note("setUseOnOOM", int{on}, pool.second, use); }
  void setNoSplit(DeviceIndex on, MempoolId_t pool) override { note("setNoSplit", int{on}, pool.second); }
  bool checkPoolLiveAllocations(DeviceIndex on, MempoolId_t pool, const std::unordered_set<void*>& expected) override {
    return note("checkPoolLiveAllocations", int{on}, pool.second, expected.size()), true;
  }
  native::ShareableHandle shareIpcHandle(void* at) override { return note("shareIpcHandle", at), native::ShareableHandle{}; }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return note("getIpcDevPtr", handle), nullptr; }
  bool isHistoryEnabled() override { return note("isHistoryEnabled"), true; }
  void recordHistory(bool enabled, native::CreateContextFn recorder, size_t entries, native::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    note("recordHistory", enabled, recorder != nullptr, entries, static_cast<int>(when), clear, skip.size());
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& data) override {
    note("recordAnnotation", data.size());
  }
  void pushCompileContext(std::string& data) override { note("pushCompileContext", data); }
  void popCompileContext() override { note("popCompileContext"); }
  void setUserMetadata(const std::string& data) override { note("setUserMetadata", data); }
  std::string getUserMetadata() override { return note("getUserMetadata"), "theirs"; }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver to) override { note("attachOutOfMemoryObserver", to != nullptr); }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker to) override {
    note("attachAllocatorTraceTracker", to != nullptr);
    std::lock_guard own(own_lock_);
    if (to != nullptr) trackers_.push_back(std::move(to));
  }
  void enablePeerAccess(DeviceIndex on, DeviceIndex other) override { note("enablePeerAccess", int{on}, int{other}); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t on,
                          bool peers) override {
    return note("memcpyAsync", to, to_device, from, from_device, bytes, on, peers), cudaSuccess;
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex on, MempoolId_t pool) override {
    return note("getCheckpointState", int{on}, pool.second), nullptr;
  }
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex on, std::shared_ptr<native::AllocatorState>) override {
    return note("setCheckpointPoolState", int{on}), native::CheckpointDelta{};
  }
  std::string name() override { return called; }
#if TORCH_VERSION_MINOR >= 12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* at) override {
    return note("getContextForPointer", at), nullptr;
  }
  void attachOomRejectionObserver(native::OomRejectionObserver to) override { note("attachOomRejectionObserver", to != nullptr); }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(DeviceIndex on) override { note("markCaptureBegin", int{on}); }
  void markCaptureEnd(DeviceIndex on) override { note("markCaptureEnd", int{on}); }
  DataPtr allocateWithAddress(size_t bytes, void* at) override { return note("allocateWithAddress", bytes, at), DataPtr(); }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return note("supportsUserMetadata"), true; }
  void annotateMemory(const void* at, const std::string& data) override { note("annotateMemory", at, data); }
#endif

 private:
  template <typename... Arguments>
  void note(const char* name, const Arguments&... arguments) const {
    std::ostringstream text;
    text << name;
    ((text << ' ' << arguments), ...);
    std::lock_guard lock(mutex_);
    if (notes_.size() < 1000) notes_.push_back(text.str());
  }
  void* make(std::size_t bytes);
  void free(void* at);
  void tell(native::TraceEntry::Action action, void* at, std::size_t bytes);

  mutable std::mutex mutex_;
  mutable std::vector<std::string> notes_;
  std::set<void*> live_;
  std::vector<native::AllocatorTraceTracker> trackers_;
  std::recursive_mutex own_lock_;  // held where the native allocator holds its own
};

Native& pytorchs();

// One range of addresses, whose storages are numbers.
struct Arena {
  std::mutex mutex;
  std::map<char*, std::size_t> live;
  std::map<void*, std::set<CUstream>> streams;
  std::size_t given_back = 0, parked = 0;
  bool full = false;
};

Arena& arena();
extern "C" const ebbtide::ArenaFace* stub_arena_face();

}  // namespace stub
