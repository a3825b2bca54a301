// Host memory that copies from and to a device go through, pinned by PyTorch's own allocator. It is taken in slabs, and given back
// when the session ends. A buffer that came back is used again for what is as large. A training has few sizes, so little
// is lost. Not thread-safe.
#pragma once

#include <c10/core/Event.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "slabs.hpp"

namespace ebbtide {

struct Buffer {
  char* memory = nullptr;
  std::uint64_t nbytes = 0;
  std::optional<c10::Event> last;  // the copy that used it last; whoever uses it next waits for that

  explicit operator bool() const { return memory != nullptr; }
};

class PinnedBuffers {
 public:
  explicit PinnedBuffers(c10::DeviceType device) : slabs_(device) {}

  void set_limit(std::uint64_t bytes) { slabs_.set_limit(bytes); }
  // So many bytes will be taken at once, for all that is known.
  void prepare(std::uint64_t bytes) { slabs_.prepare(bytes); }

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
    slabs_.give_back();
    at_ = nullptr;
    left_ = 0;
  }

  std::uint64_t used() const { return used_; }
  std::uint64_t peak() const { return peak_; }

 private:
  static constexpr std::uint64_t kUnit = std::uint64_t{4} << 10;

  Buffer cut(std::uint64_t nbytes) {
    if (nbytes > left_) {
      Slab slab = slabs_.take(nbytes);
      if (slab.memory == nullptr) return {};
      if (left_ > 0) free_.emplace(left_, Buffer{at_, left_, std::nullopt});
      at_ = slab.memory;
      left_ = slab.nbytes;
    }
    Buffer buffer{std::exchange(at_, at_ + nbytes), nbytes, std::nullopt};
    left_ -= nbytes;
    used_ += nbytes;
    peak_ = std::max(peak_, used_);
    return buffer;
  }

  Slabs slabs_;
  std::multimap<std::uint64_t, Buffer> free_;  // by size
  char* at_ = nullptr;  // what the last slab has left
  std::uint64_t left_ = 0;
  std::uint64_t used_ = 0, peak_ = 0;
};

}  // namespace ebbtide
