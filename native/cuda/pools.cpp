#include "pools.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace ebbtide {

void Pools::begin(c10::MempoolId_t pool, Filter filter) {
  std::unique_lock lock(mutex_);
  pools_.push_back({pool, std::move(filter)});
  count_ = pools_.size();
}

void Pools::end(c10::MempoolId_t pool) {
  std::unique_lock lock(mutex_);
  auto found = std::find_if(pools_.begin(), pools_.end(), [&](const Pool& p) { return p.id == pool; });
  if (found != pools_.end()) pools_.erase(found);
  count_ = pools_.size();
}

bool Pools::take(cudaStream_t stream) const {
  if (count_ == 0) return false;
  std::shared_lock lock(mutex_);
  return std::any_of(pools_.begin(), pools_.end(), [&](const Pool& p) { return p.filter(stream); });
}

}  // namespace ebbtide
