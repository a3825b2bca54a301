// Host memory that copies from and to a device go through, pinned by PyTorch's own allocator. It is taken in slabs, and given back
// when the session ends. A buffer that came back is used again for what is as large. Where the limit is reached, free ones are
// joined and cut anew. Not thread-safe.
#pragma once

#include <c10/core/Event.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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
  enum class Effort : std::uint8_t {
    None,
    Wait,  // for copies that use what is free
    Beyond,  // the limit, if need be
  };

  explicit PinnedBuffers(c10::DeviceType device) : slabs_(device) {}

  void set_limit(std::uint64_t bytes) { slabs_.set_limit(bytes); }
  // So many bytes will be taken at once, for all that is known.
  void prepare(std::uint64_t bytes) { slabs_.prepare(bytes); }

  // Null where the limit leaves no room for it, or the system none.
  Buffer take(std::uint64_t nbytes, Effort effort = Effort::None) {
    nbytes = (nbytes + kUnit - 1) / kUnit * kUnit;
    Buffer buffer = take_free(nbytes, nbytes + nbytes / 4);
    if (!buffer) buffer = cut(nbytes, false);
    if (!buffer) buffer = divide(nbytes, effort != Effort::None);
    if (!buffer) buffer = take_free(nbytes, ~std::uint64_t{0});
    if (!buffer && effort == Effort::Beyond) buffer = cut(nbytes, true);
    used_ += buffer.nbytes;
    peak_ = std::max(peak_, used_);
    return buffer;
  }

  void give(Buffer buffer) {
    used_ -= buffer.nbytes;
    keep(std::move(buffer));
  }

  // Waits for the copies. Does nothing while a buffer is taken.
  void give_back() {
    if (used_ > 0) return;
    for (const auto& [nbytes, buffer] : free_) {
      if (buffer.last) buffer.last->synchronize();
    }
    free_.clear();
    begins_.clear();
    slabs_.give_back();
    at_ = nullptr;
    left_ = 0;
  }

  std::uint64_t used() const { return used_; }
  std::uint64_t peak() const { return peak_; }

 private:
  static constexpr std::uint64_t kUnit = std::uint64_t{4} << 10;

  Buffer take_free(std::uint64_t nbytes, std::uint64_t most) {
    auto fits = free_.lower_bound(nbytes);
    if (fits == free_.end() || fits->first > most) return {};
    return std::move(free_.extract(fits).mapped());
  }

  void keep(Buffer buffer) {
    std::uint64_t nbytes = buffer.nbytes;
    if (nbytes > 0) free_.emplace(nbytes, std::move(buffer));
  }

  Buffer cut(std::uint64_t nbytes, bool beyond) {
    if (nbytes > left_) {
      Slab slab = slabs_.take(nbytes, beyond);
      if (slab.memory == nullptr) return {};
      keep({at_, left_, std::nullopt});
      at_ = slab.memory;
      left_ = slab.nbytes;
      begins_.insert(at_);
    }
    left_ -= nbytes;
    return {std::exchange(at_, at_ + nbytes), nbytes, std::nullopt};
  }

  // Of free ones beside each other, once no copy uses them. Those that one still uses stay apart, unless this waits for it.
  Buffer divide(std::uint64_t nbytes, bool waits) {
    keep({at_, std::exchange(left_, 0), std::nullopt});
    std::map<char*, std::uint64_t> whole;
    for (auto it = free_.begin(); it != free_.end();) {
      Buffer& buffer = it->second;
      if (buffer.last && waits) buffer.last->synchronize();
      if (buffer.last && !buffer.last->query()) {
        ++it;
        continue;
      }
      whole.emplace(buffer.memory, buffer.nbytes);
      it = free_.erase(it);
    }
    for (auto it = whole.begin(); it != whole.end();) {
      Buffer merged{it->first, it->second, std::nullopt};
      while (++it != whole.end() && it->first == merged.memory + merged.nbytes && !begins_.contains(it->first)) {
        merged.nbytes += it->second;
      }
      keep(std::move(merged));
    }
    for (auto fits = free_.lower_bound(nbytes); fits != free_.end(); ++fits) {
      if (fits->second.last) continue;
      Buffer buffer = std::move(free_.extract(fits).mapped());
      keep({buffer.memory + nbytes, buffer.nbytes - nbytes, std::nullopt});
      buffer.nbytes = nbytes;
      return buffer;
    }
    return {};
  }

  Slabs slabs_;
  std::multimap<std::uint64_t, Buffer> free_;  // by size
  std::set<char*> begins_;  // of slabs, across which no buffer lies
  char* at_ = nullptr;  // what the last slab has left
  std::uint64_t left_ = 0;
  std::uint64_t used_ = 0, peak_ = 0;
};

}  // namespace ebbtide
