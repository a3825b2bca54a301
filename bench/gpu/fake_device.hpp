// What the fake driver's functions share: handles, mappings, pinned memory, and streams that are threads with queues.
//
// An access is checked against the mappings when its work runs. fake_cuda.cpp says what is stricter here than on a GPU.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "driver.hpp"

namespace fake {

using Address = std::uint64_t;
// Bytes that memory is given in: a GPU's two MiB, or fewer for tests with small tensors.
inline const std::size_t kGranule = std::stoull(getenv("FAKE_CUDA_GRANULE") ? getenv("FAKE_CUDA_GRANULE") : "2097152");
// Whether the CPU's own accesses meet the mappings, too: a signal where they may not be.
inline const bool kProtects = getenv("FAKE_CUDA_PROTECTS") != nullptr;

[[noreturn]] inline void misuse(const char* what) {
  std::fprintf(stderr, "fake CUDA driver: %s\n", what);
  std::abort();
}

struct Range {
  Address from;
  std::size_t bytes;
  bool write;
  bool host = false;  // pinned host memory rather than the device's
};

struct Physical {
  int file;
  std::size_t bytes;
  bool on_host;
  int references = 1;  // the creation's, and one for each mapping
};

struct Mapping {
  std::size_t bytes;
  std::uint64_t handle;
  int access = 0;  // 0 none, 1 read, 3 read and write
};

struct Work {
  std::vector<Range> touches;
  std::function<void()> run;
  bool even_after_errors = false;  // events are reached also on a lost context, so that nobody waits for ever
};

struct Device {
  std::mutex mutex;  // guards what follows; never held while work runs
  std::map<Address, std::size_t> reservations;
  std::map<Address, Mapping> mappings;
  std::map<std::uint64_t, Physical> handles;
  std::map<Address, std::size_t> pinned;
  std::uint64_t next_handle = 1;
  std::size_t capacity = std::stoull(getenv("FAKE_CUDA_BYTES") ? getenv("FAKE_CUDA_BYTES") : "1073741824");
  std::size_t used = 0;
  std::atomic<int> sticky{0};
  const std::uint64_t longest_delay_us = std::stoull(getenv("FAKE_CUDA_DELAY_US") ? getenv("FAKE_CUDA_DELAY_US") : "300");
  bool lenient = getenv("FAKE_CUDA_LENIENT") != nullptr;

  // The whole range is mapped with the access that the touch needs.
  bool allows(const Range& r) {
    std::lock_guard lock(mutex);
    Address at = r.from;
    if (r.host) return true;  // checked when the copy was enqueued
    while (at < r.from + r.bytes) {
      auto after = mappings.upper_bound(at);
      if (after == mappings.begin()) return false;
      const auto& [start, mapping] = *--after;
      if (at >= start + mapping.bytes || (mapping.access & (r.write ? 2 : 1)) == 0) return false;
      at = start + mapping.bytes;
    }
    return true;
  }
};

inline Device& device() {
  static auto* the = new Device;  // leaked: stream threads may outlive main
  return *the;
}

struct FakeStream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Work>> queue;  // the front one is running
  bool stopping = false;
  std::mt19937 delays{std::random_device{}()};
  std::thread thread{[this] { loop(); }};

  void push(std::shared_ptr<Work> work) {
    std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty(); });
  }
  bool idle() {
    std::lock_guard lock(mutex);
    return queue.empty();
  }
  bool touches(Address from, std::size_t bytes) {
    std::lock_guard lock(mutex);
    for (const auto& work : queue)
      for (const Range& r : work->touches)
        if (!r.host && r.from < from + bytes && from < r.from + r.bytes) return true;
    return false;
  }
  void loop() {
    for (;;) {
      std::shared_ptr<Work> work;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || !queue.empty(); });
        if (queue.empty()) return;
        work = queue.front();
      }
      const bool copies = !work->touches.empty() && work->touches.back().host;
      if (delays() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays() % (copies ? device().longest_delay_us : 100)));
      bool ok = work->even_after_errors || device().sticky == 0;
      for (const Range& r : work->touches) ok = ok && device().allows(r);
      if (ok) {
        work->run();
      } else {
        device().sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      std::lock_guard lock(mutex);
      queue.pop_front();
      changed.notify_all();
    }
  }
};

inline std::mutex streams_mutex;
inline std::vector<FakeStream*>& streams() {
  static auto* all = new std::vector<FakeStream*>;
  return *all;
}

inline FakeStream* new_stream() {
  auto* stream = new FakeStream;
  std::lock_guard lock(streams_mutex);
  streams().push_back(stream);
  return stream;
}

inline FakeStream& of(CUstream stream) {
  static FakeStream* legacy = new_stream();
  return stream == nullptr ? *legacy : *reinterpret_cast<FakeStream*>(stream);
}

struct FakeEvent {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;
  std::chrono::steady_clock::time_point when;
};

inline FakeEvent& of(CUevent event) { return *reinterpret_cast<FakeEvent*>(event); }

inline CUresult state() { return static_cast<CUresult>(device().sticky.load()); }

inline CUresult enqueue(CUstream stream, std::vector<Range> touches, std::function<void()> run) {
  if (state() != CUDA_SUCCESS) return state();
  of(stream).push(std::make_shared<Work>(Work{std::move(touches), std::move(run)}));
  return CUDA_SUCCESS;
}

inline void require_pinned(Address from, std::size_t bytes) {
  std::lock_guard lock(device().mutex);
  auto after = device().pinned.upper_bound(from);
  if (after != device().pinned.begin()) {
    const auto& [start, length] = *--after;
    if (from + bytes <= start + length) return;
  }
  misuse("a copy to or from host memory that is not pinned");
}

inline void require_idle(Address from, std::size_t bytes) {
  if (device().lenient) return;
  std::lock_guard lock(streams_mutex);
  for (FakeStream* stream : streams())
    if (stream->touches(from, bytes)) misuse("an unmap or loss of access under work that is still queued");
}

inline void drop(std::uint64_t handle) {  // with the device's mutex
  auto found = device().handles.find(handle);
  if (--found->second.references > 0) return;
  close(found->second.file);
  if (!found->second.on_host) device().used -= found->second.bytes;
  device().handles.erase(found);
}

}  // namespace fake
