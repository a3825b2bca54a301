// The allocator in front of PyTorch's own for CUDA (D1 in docs/gpu.md): large storages of the arena's GPU come from the arena
// while it is on, and all else from the allocator that was there, which goes on knowing nothing of it.
//
// [Note: both kinds]  What either has made lives beside the other's, and whose an address is its range says. So storages that
// were there before the arena stay where they are, and the arena's free themselves after it was put off. raw_deleter() is
// PyTorch's, since captured graphs ask with it whether a storage is PyTorch's; with an address of the arena it raises.
//
// A snapshot is PyTorch's alone, since communicators register the memory of all that is in one, and the arena's changes.
//
// [Note: order of locks]  PyTorch's, then Pools', then the arena's. Here none of ours is held while PyTorch's allocator is
// called, and what PyTorch calls under its own lock, give_back_what_lacks(), waits for nothing.
#pragma once

#include <atomic>

#include "../device/faces.hpp"
#include "forwarding.hpp"
#include "pools.hpp"
#include "storage_stats.hpp"

namespace ebbtide {

class Front final : public Forwarding {
 public:
  Front(native::CUDAAllocator& behind, const ArenaFace& arena, DeviceIndex device, std::size_t min_bytes);

  void set_on(bool on) { on_ = on; }
  // What arena and PyTorch's allocator may have of the GPU together; 0: nobody has said. Throws c10::Error where PyTorch may
  // not have as much.
  void set_budget(std::uint64_t nbytes);
  // What cuDNN, which chooses algorithms by it, is to take for the largest block that could be had; 0: as PyTorch says.
  void set_largest_block(std::uint64_t nbytes) { largest_block_ = nbytes; }

  DeviceIndex device() const { return device_; }
  native::CUDAAllocator& pytorchs() const { return behind(); }
  std::uint64_t served() const { return served_; }          // allocations that the arena made
  std::uint64_t left_alone() const { return left_alone_; }  // that it did not, large as they were, while it was on
  // For an allocation of PyTorch's, under way in the calling thread, that has found no memory in its cache.
  void give_back_what_lacks() const;
  void release(void* at);  // of the arena

  DataPtr allocate(size_t bytes) override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* at) override;
  bool is_simple_data_ptr(const DataPtr& data) const override;
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) override;
  using Forwarding::recordStream;
  void* getBaseAllocation(void* at, size_t* bytes) override;
  native::ShareableHandle shareIpcHandle(void* at) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peers) override;
  void emptyCache(MempoolId_t pool) override;
  void cacheInfo(DeviceIndex device, size_t* largest) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;

 private:
  bool serves(std::size_t bytes);
  DataPtr allocate_managed(std::size_t bytes);
  void report(void* at, std::int64_t change);
  void require_fraction(double fraction);

  const ArenaFace& arena_;
  const DeviceIndex device_;
  const std::size_t min_bytes_;
  std::atomic<bool> on_{false};
  std::atomic<std::uint64_t> budget_{0};
  std::atomic<std::uint64_t> largest_block_{0};
  std::atomic<std::uint64_t> served_{0}, left_alone_{0};
  Pools pools_;
  StorageStats stats_;
};

Front* the_front();  // null before install_front()

// Puts it in place, once, for good: deleters run after the interpreter is gone. Throws std::runtime_error, with what to do,
// where another allocator than PyTorch's native one is there, or a front already.
void install_front(const ArenaFace& arena, DeviceIndex device, std::size_t min_bytes);

}  // namespace ebbtide
