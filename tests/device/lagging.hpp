// A device of the tests' own: its memory is the host's, and its streams are threads that lag. It stands in for a GPU
// where there is none, and is stricter than one. Whoever forgets to wait, or frees too early, gets other bytes.
//
// - A kernel takes raw pointers when it is launched and runs later. It holds no storage.
// - A stream waits a random while before all that it does (LAGGING_SEED), so that streams and host are apart.
// - Memory has no contents but 0xEE when it is new and once it was freed. The stream that it belongs to fills it, in its order.
// - Memory that went back to the system is never mapped again: a kernel that still uses it crashes.
//
// As with every backend of others, `Module.to` makes new parameters here, where CUDA gives the old ones other memory.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lagging {

constexpr auto DEVICE_TYPE = c10::DeviceType::PrivateUse1;
constexpr int GARBAGE = 0xEE;

inline c10::Device device() { return {DEVICE_TYPE, 0}; }

// A point in the order of a stream's work.
class Mark {
 public:
  void pass();
  bool passed();
  void wait();
  // When it was passed; only to be asked once it was.
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
  std::chrono::steady_clock::time_point time_;
};

c10::Stream current_stream();

// Returns at once; the stream's thread does the work after all that it was given before. What the work throws is thrown
// at the next synchronization. The work MUST NOT allocate memory of the device, nor need Python's lock.
void launch(const c10::Stream& stream, std::function<void()> work);
std::shared_ptr<Mark> mark(const c10::Stream& stream);
// The stream's later work waits for the mark.
void follow(const c10::Stream& stream, std::shared_ptr<Mark> mark);
// The caller waits.
void synchronize(const c10::Stream& stream);
void synchronize_device();

// Takes no part in what c10::SetAllocator says later, as CUDA's takes none.
c10::DeviceAllocator& memory();
void set_capacity(size_t bytes);
bool is_pinned(const void* pointer);
std::vector<std::pair<size_t, pid_t>> pinned_by();  // bytes that were pinned, and the thread's number
size_t pinned_bytes();  // that somebody has
const at::Generator& default_generator();

// How often an operator ran beside the host, and how often the host waited for it.
struct Calls {
  size_t beside = 0;
  size_t waited_for = 0;
};
std::vector<std::pair<std::string, Calls>> calls();

}  // namespace lagging
