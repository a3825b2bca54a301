// A CUDA allocator that hands every call to another one (D1 in docs/gpu.md).
//
// It compiles against the headers of PyTorch 2.11 to 2.14. A pure virtual function that is missing does not compile. One that
// is not pure does, and then fails or does nothing where the native allocator would have worked: so tests/cuda/test_front.py
// looks for every virtual function of the headers here.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ebbtide {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;

class Forwarding : public native::CUDAAllocator {
 public:
  explicit Forwarding(native::CUDAAllocator& behind) : behind_(behind) {}

  // c10::Allocator. A DataPtr of the native allocator carries the native deleter, so what it made it frees.
  DataPtr allocate(size_t bytes) override { return behind_.allocate(bytes); }
  bool is_simple_data_ptr(const DataPtr& data) const override { return behind_.is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return behind_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { behind_.copy_data(to, from, bytes); }

  // c10::DeviceAllocator
  bool initialized() override { return behind_.initialized(); }
  void emptyCache(MempoolId_t pool) override { behind_.emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override { return behind_.getDeviceStats(device); }
  void resetAccumulatedStats(DeviceIndex device) override { behind_.resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { behind_.resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return behind_.getMemoryInfo(device); }
  using native::CUDAAllocator::recordStream;  // the one of c10::Stream calls the one below

  // c10::cuda::CUDACachingAllocator::CUDAAllocator
  void* raw_alloc(size_t bytes) override { return behind_.raw_alloc(bytes); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override { return behind_.raw_alloc_with_stream(bytes, stream); }
  void raw_delete(void* at) override { behind_.raw_delete(at); }
  void init(int devices) override { behind_.init(devices); }
  double getMemoryFraction(DeviceIndex device) override { return behind_.getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override { behind_.setMemoryFraction(fraction, device); }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return behind_.getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { behind_.enable(value); }
  bool isEnabled() const override { return behind_.isEnabled(); }
  void cacheInfo(DeviceIndex device, size_t* largest) override { behind_.cacheInfo(device, largest); }
  void* getBaseAllocation(void* at, size_t* bytes) override { return behind_.getBaseAllocation(at, bytes); }
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) override { behind_.recordStream(data, stream); }
  native::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return behind_.snapshot(pool, traces); }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    behind_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override { behind_.endAllocateToPool(device, pool); }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { behind_.releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override { return behind_.getPoolUseCount(device, pool); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> of) override {
    behind_.createOrIncrefPool(device, pool, std::move(of));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override { behind_.setUseOnOOM(device, pool, use); }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { behind_.setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& expected) override {
    return behind_.checkPoolLiveAllocations(device, pool, expected);
  }
  native::ShareableHandle shareIpcHandle(void* at) override { return behind_.shareIpcHandle(at); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return behind_.getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return behind_.isHistoryEnabled(); }
  void recordHistory(bool enabled, native::CreateContextFn recorder, size_t entries, native::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    behind_.recordHistory(enabled, recorder, entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& data) override { behind_.recordAnnotation(data); }
  void pushCompileContext(std::string& data) override { behind_.pushCompileContext(data); }
  void popCompileContext() override { behind_.popCompileContext(); }
  void setUserMetadata(const std::string& data) override { behind_.setUserMetadata(data); }
  std::string getUserMetadata() override { return behind_.getUserMetadata(); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    behind_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    behind_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override { behind_.enablePeerAccess(device, other); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peers) override {
    return behind_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override {
    return behind_.getCheckpointState(device, id);
  }
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<native::AllocatorState> state) override {
    return behind_.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return behind_.name(); }

#if TORCH_VERSION_MINOR >= 12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* at) override { return behind_.getContextForPointer(at); }
  void attachOomRejectionObserver(native::OomRejectionObserver observer) override {
    behind_.attachOomRejectionObserver(std::move(observer));
  }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(DeviceIndex device) override { behind_.markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { behind_.markCaptureEnd(device); }
  DataPtr allocateWithAddress(size_t bytes, void* at) override { return behind_.allocateWithAddress(bytes, at); }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return behind_.supportsUserMetadata(); }
  void annotateMemory(const void* at, const std::string& data) override { behind_.annotateMemory(at, data); }
#endif

 protected:
  native::CUDAAllocator& behind() const { return behind_; }

 private:
  native::CUDAAllocator& behind_;
};

}  // namespace ebbtide
