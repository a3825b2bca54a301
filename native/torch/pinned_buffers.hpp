// Host memory that copies from and to a device go through, pinned by PyTorch's own allocator. It is taken in slabs, and given back
// when the session ends. A buffer that came back is used again for what is as large. A training has few sizes, so little
// is lost. Not thread-safe.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace ebbtide {

struct Buffer {
  char* memory = nullptr;
  std::uint64_t nbytes = 0;
  std::optional<c10::Event> last;  // the copy that used it last; whoever uses it next waits for that

  explicit operator bool() const { return memory != nullptr; }
};

class PinnedBuffers {
 public:
  explicit PinnedBuffers(c10::DeviceType device) : pinned_(*at::getHostAllocator(device)) {}

  void set_limit(std::uint64_t bytes) { limit_ = std::max(bytes, taken_); }

  // Null where the limit leaves no room for it, or the system none.
  Buffer take(std::uint64_t nbytes) {
    nbytes = (nbytes + kUnit - 1) / kUnit * kUnit;
    auto fits = free_.lower_bound(nbytes);
    if (fits == free_.end() || fits->first > nbytes + nbytes / 4) {
      if (Buffer fresh = cut(nbytes)) return fresh;
      if (fits == free_.end()) return {};
    }
    Buffer buffer = std::move(fits->second);
    free_.erase(fits);
    used_ += buffer.nbytes;
    peak_ = std::max(peak_, used_);
    return buffer;
  }

  void give(Buffer buffer) {
    used_ -= buffer.nbytes;
    std::uint64_t nbytes = buffer.nbytes;
    free_.emplace(nbytes, std::move(buffer));
  }

  // Waits for the copies. Does nothing while a buffer is taken.
  void give_back() {
    if (used_ > 0) return;
    for (const auto& [nbytes, buffer] : free_) {
      if (buffer.last) buffer.last->synchronize();
    }
    free_.clear();
    slabs_.clear();
    at_ = nullptr;
    left_ = taken_ = 0;
  }

  std::uint64_t used() const { return used_; }
  std::uint64_t peak() const { return peak_; }

 private:
  static constexpr std::uint64_t kUnit = std::uint64_t{4} << 10;
  static constexpr std::uint64_t kSlab = std::uint64_t{256} << 20;

  Buffer cut(std::uint64_t nbytes) {
    if (nbytes > left_) {
      std::uint64_t slab = std::max(std::bit_ceil(nbytes), kSlab);  // PyTorch's allocator rounds up to a power of two
      if (slab > limit_ - taken_) slab = limit_ - taken_;
      if (slab < nbytes) return {};
      if (left_ > 0) free_.emplace(left_, Buffer{at_, left_, std::nullopt});
      left_ = 0;
      try {
        slabs_.push_back(pinned_.allocate(slab));
      } catch (const c10::Error&) {  // the system pins no more
        limit_ = taken_;
        return {};
      }
      at_ = static_cast<char*>(slabs_.back().get());
      left_ = slab;
      taken_ += slab;
    }
    Buffer buffer{std::exchange(at_, at_ + nbytes), nbytes, std::nullopt};
    left_ -= nbytes;
    used_ += nbytes;
    peak_ = std::max(peak_, used_);
    return buffer;
  }

  at::HostAllocator& pinned_;
  std::uint64_t limit_ = 0;
  std::vector<c10::DataPtr> slabs_;
  std::multimap<std::uint64_t, Buffer> free_;  // by size
  char* at_ = nullptr;  // what the last slab has left
  std::uint64_t left_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t used_ = 0, peak_ = 0;
};

}  // namespace ebbtide
