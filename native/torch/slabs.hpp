// Pinned host memory, in large pieces. The system takes its time to pin, so a thread does it as soon as it is known how much will be
// needed. Who needs more than that pins it himself.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace ebbtide {

struct Slab {
  char* memory = nullptr;
  std::uint64_t nbytes = 0;
};

class Slabs {
 public:
  explicit Slabs(c10::DeviceType device) : pinned_(*at::getHostAllocator(device)) {}
  ~Slabs();
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  void set_limit(std::uint64_t bytes);
  // The thread is to pin what lacks of so many bytes, within the limit.
  void prepare(std::uint64_t bytes);
  // One of at least so many bytes; waits for the thread, if that pins one. Null memory: the limit,
  // unless it may go `beyond` that, or the system has none.
  Slab take(std::uint64_t nbytes, bool beyond);
  void give_back();  // all; nobody uses any

 private:
  static constexpr std::uint64_t kSlab = std::uint64_t{256} << 20;

  using Lock = std::unique_lock<std::mutex>;
  std::uint64_t next_bytes(std::uint64_t least) const;
  bool lacks() const { return pinned_bytes_ < wanted_ && pinned_bytes_ < limit_; }  // something that the thread will pin
  Slab pin(Lock& lock, std::uint64_t nbytes);
  void pin_what_lacks();
  void pin_ahead();

  at::HostAllocator& pinned_;
  std::mutex mutex_;  // guards what follows; nobody pins under it
  std::condition_variable changed_;
  std::vector<c10::DataPtr> memory_;
  std::deque<Slab> ready_;  // of these, those that nobody has taken
  std::uint64_t limit_ = 0;
  std::uint64_t pinned_bytes_ = 0;  // what is being pinned, too
  std::uint64_t wanted_ = 0;
  unsigned pinning_ = 0;  // threads that pin now
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ebbtide
