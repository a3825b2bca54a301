// What a profiler is told while a thread waits at an operator's entry, or for room: a label from the one moment to the other, on
// that thread. Accesses that fault have none: a signal handler cannot tell anybody.
#pragma once

#include <mutex>

#include "types.hpp"

namespace ebbtide {

// Called without the arena's mutex, which a profiler's own code might want.
struct WaitLabels {
  void* (*begin)(Stall cause) = nullptr;  // null: nobody listens
  void (*end)(void* label) = nullptr;     // on the same thread
};

// From its birth to its death. Both let go of the mutex for a moment where somebody listens.
class WaitLabel {
 public:
  WaitLabel(const WaitLabels& labels, std::unique_lock<std::mutex>& lock, Stall cause) : labels_(labels), lock_(lock) {
    if (labels_.begin == nullptr) return;
    lock_.unlock();
    label_ = labels_.begin(cause);
    lock_.lock();
  }
  ~WaitLabel() {
    if (label_ == nullptr) return;
    lock_.unlock();
    labels_.end(label_);
    lock_.lock();
  }
  WaitLabel(const WaitLabel&) = delete;
  WaitLabel& operator=(const WaitLabel&) = delete;

 private:
  const WaitLabels& labels_;
  std::unique_lock<std::mutex>& lock_;
  void* label_ = nullptr;
};

}  // namespace ebbtide
