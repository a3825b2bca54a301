// The private pools that allocations are being sent to: by captures, and by torch.cuda.use_mem_pool.
//
// Each has a filter, which says by the stream and the calling thread whether an allocation is for it. Filters are called under
// the mutex here, so they may take no lock that is held while allocate() is called; PyTorch's take none.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <functional>
#include <shared_mutex>
#include <vector>

namespace ebbtide {

class Pools {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  void begin(c10::MempoolId_t pool, Filter filter);
  void end(c10::MempoolId_t pool);
  bool take(cudaStream_t stream) const;  // whether an allocation on it, by the calling thread, is one of theirs

 private:
  struct Pool {
    c10::MempoolId_t id;
    Filter filter;
  };

  mutable std::shared_mutex mutex_;
  std::vector<Pool> pools_;
  std::atomic<std::size_t> count_{0};  // of pools_, for those that find none
};

}  // namespace ebbtide
