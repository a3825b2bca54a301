#include "slabs.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "../core/system.hpp"

namespace ebbtide {

Slabs::~Slabs() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Slabs::set_limit(std::uint64_t bytes) {
  Lock lock(mutex_);
  limit_ = std::max(bytes, pinned_bytes_);
  pin_what_lacks();
}

void Slabs::prepare(std::uint64_t bytes) {
  Lock lock(mutex_);
  wanted_ = std::max(wanted_, bytes);
  pin_what_lacks();
}

// By the thread. Whoever takes a slab waits for it as long as something lacks.
void Slabs::pin_what_lacks() {
  if (!lacks()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { pin_ahead(); });
  changed_.notify_all();
}

// What the next one has, which may be less than the least; 0: the limit is reached.
std::uint64_t Slabs::next_bytes(std::uint64_t least) const {
  std::uint64_t slab = std::max(std::bit_ceil(least), kSlab);  // PyTorch's allocator rounds up to a power of two
  return std::min(slab, limit_ - pinned_bytes_);
}

Slab Slabs::take(std::uint64_t nbytes, bool beyond) {
  Lock lock(mutex_);
  while (true) {
    auto ready = std::ranges::find_if(ready_, [nbytes](const Slab& slab) { return slab.nbytes >= nbytes; });
    if (ready != ready_.end()) {
      Slab slab = *ready;
      ready_.erase(ready);
      return slab;
    }
    if (pinning_ == 0 && !lacks()) break;
    changed_.wait(lock);
  }
  std::uint64_t bytes = next_bytes(nbytes);
  if (bytes < nbytes && beyond) {
    limit_ = pinned_bytes_ + nbytes;
    bytes = nbytes;
  }
  return bytes >= nbytes ? pin(lock, bytes) : Slab{};
}

// Without the mutex, for the most part.
Slab Slabs::pin(Lock& lock, std::uint64_t nbytes) {
  pinned_bytes_ += nbytes;
  ++pinning_;
  lock.unlock();
  c10::DataPtr memory;
  try {
    memory = pinned_.allocate(nbytes);
  } catch (const c10::Error&) {  // the system pins no more
  }
  lock.lock();
  --pinning_;
  changed_.notify_all();
  if (memory.get() == nullptr) {
    pinned_bytes_ -= nbytes;
    limit_ = pinned_bytes_;
    return {};
  }
  memory_.push_back(std::move(memory));
  return {static_cast<char*>(memory_.back().get()), nbytes};
}

void Slabs::pin_ahead() {
  block_signals();
  Lock lock(mutex_);
  while (!stopping_) {
    if (!lacks()) {
      changed_.wait(lock);
    } else if (Slab slab = pin(lock, next_bytes(0)); slab.memory != nullptr) {
      ready_.push_back(slab);
    }
  }
}

void Slabs::give_back() {
  Lock lock(mutex_);
  wanted_ = 0;
  changed_.wait(lock, [this] { return pinning_ == 0; });
  ready_.clear();
  memory_.clear();
  pinned_bytes_ = 0;
}

}  // namespace ebbtide
