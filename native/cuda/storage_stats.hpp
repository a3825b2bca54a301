// What torch.cuda's statistics say of the arena's storages, added to those of PyTorch's allocator.
//
// Levels are sums. A peak is the sum of both peaks, which may lie at different times: it is never less than the true one.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <mutex>

namespace ebbtide {

class StorageStats {
 public:
  using Stat = c10::CachingAllocator::Stat;
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

  void born(std::uint64_t nbytes, std::uint64_t held_bytes);
  void died(std::uint64_t nbytes, std::uint64_t held_bytes);
  void add_to(DeviceStats& stats, std::uint64_t held_bytes);
  void reset_accumulated();
  void reset_peaks();

 private:
  void hold(std::uint64_t bytes);

  std::mutex mutex_;
  Stat storages_;
  Stat bytes_;  // as requested
  Stat held_;   // of the GPU
};

}  // namespace ebbtide
