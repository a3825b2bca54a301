// What the probe's phases share: JSON lines, percentiles, device memory as handles and addresses, kernels, and a load that
// keeps the device busy. Everything ends the process with a sentence when a call fails that must not.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver.hpp"
#include "kernels.hpp"

namespace gpu {

constexpr std::size_t kMiB = 1ull << 20;

inline double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

// One JSON line. Values are numbers, text (no quotes or backslashes in it) or lists of numbers.
class Line {
 public:
  explicit Line(const std::string& what) { text("what", what); }
  Line& number(const std::string& key, double value) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%.9g", value);
    return raw(key, digits);
  }
  Line& text(const std::string& key, const std::string& value) { return raw(key, "\"" + value + "\""); }
  Line& flag(const std::string& key, bool value) { return raw(key, value ? "true" : "false"); }
  Line& error(const std::string& key, CUresult value) { return text(key, name_of(value)); }
  // p50, p99 and the largest of a list of durations.
  Line& durations(const std::string& key, std::vector<double> values) {
    if (values.empty()) return *this;
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) { return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))]; };
    return number(key + "_p50_us", at(0.5)).number(key + "_p99_us", at(0.99)).number(key + "_max_us", values.back());
  }
  void print() {
    std::printf("{%s}\n", body_.c_str());
    std::fflush(stdout);  // a phase that is ended at its limit has printed what it had
  }

 private:
  Line& raw(const std::string& key, const std::string& value) {
    body_ += (body_.empty() ? "" : ", ") + ("\"" + key + "\": " + value);
    return *this;
  }
  std::string body_;
};

inline CUdevice the_device = 0;
inline bool small = false;  // sizes and counts for the fake driver

// Sizes shrink with small, but stay whole granules.
inline std::size_t sized(std::size_t mib) { return (small ? std::max<std::size_t>(2, mib / 32 / 2 * 2) : mib) * kMiB; }
inline int count(int n) { return small ? std::max(2, n / 20) : n; }

inline CUmemAllocationProp device_memory() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {the_device}};
  return prop;
}

inline CUmemAllocationProp host_memory() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  return prop;
}

inline CUresult set_access(CUdeviceptr at, std::size_t bytes, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, bool host_too = false) {
  CUmemAccessDesc access[2]{};
  access[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, {the_device}};
  access[0].flags = flags;
  access[1].location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  access[1].flags = flags;
  return driver.cuMemSetAccess(at, bytes, access, host_too ? 2 : 1);
}

inline void give_access(CUdeviceptr at, std::size_t bytes, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  must(set_access(at, bytes, flags), "cuMemSetAccess", __FILE__, __LINE__);
}

inline CUdeviceptr reserve(std::size_t bytes) {
  CUdeviceptr at = 0;
  MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  return at;
}

inline CUmemGenericAllocationHandle create(std::size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = device_memory();
  MUST(cuMemCreate(&handle, bytes, &prop, 0));
  return handle;
}

inline void map(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  MUST(cuMemMap(at, bytes, 0, handle, 0));
  give_access(at, bytes, flags);
}

// A handle of its own with one address, both given back at the end.
class Memory {
 public:
  explicit Memory(std::size_t size) : bytes(size), at(reserve(size)), handle(create(size)) { map(at, bytes, handle); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    driver.cuMemUnmap(at, bytes);  // fails on a lost context, where nothing is left to give back
    driver.cuMemRelease(handle);
    driver.cuMemAddressFree(at, bytes);
  }
  const std::size_t bytes;
  const CUdeviceptr at;
  const CUmemGenericAllocationHandle handle;
};

class Pinned {
 public:
  explicit Pinned(std::size_t size) : bytes(size) { MUST(cuMemHostAlloc(&at, size, 0)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { driver.cuMemFreeHost(at); }
  std::uint64_t* words() const { return static_cast<std::uint64_t*>(at); }
  const std::size_t bytes;
  void* at = nullptr;
};

class Stream {
 public:
  Stream() { MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { driver.cuStreamDestroy(stream); }
  void wait() const { MUST(cuStreamSynchronize(stream)); }
  CUstream stream = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = CU_EVENT_DISABLE_TIMING) { MUST(cuEventCreate(&event, flags)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { driver.cuEventDestroy(event); }
  CUevent event = nullptr;
};

inline CUfunction kernel(const std::string& name) {
  static CUmodule module = nullptr;
  static std::map<std::string, CUfunction> functions;
  if (module == nullptr) {
    MUST(cuModuleLoadData(&module, kPtx));
    for (const char* known : {"fill", "check", "copy", "fma", "spin", "read_for", "add"}) MUST(cuModuleGetFunction(&functions[known], module, known));
  }
  return functions.at(name);
}

// Not a must: the crash phase wants the answer.
inline CUresult launch(const std::string& name, unsigned blocks, unsigned threads, CUstream stream, std::initializer_list<std::uint64_t> words) {
  std::vector<std::uint64_t> values(words);
  std::vector<void*> parameters;
  for (std::uint64_t& value : values) parameters.push_back(&value);
  return driver.cuLaunchKernel(kernel(name), blocks, 1, 1, threads, 1, 1, 0, stream, parameters.data(), nullptr);
}

inline void run(const std::string& name, CUstream stream, std::initializer_list<std::uint64_t> words) {
  const bool one = name == "spin";
  const bool few = name == "read_for";
  must(launch(name, one || few ? 1 : 528, one ? 1 : 256, stream, words), name.c_str(), __FILE__, __LINE__);
}

inline void fill(CUdeviceptr at, std::size_t bytes, std::uint64_t seed, CUstream stream) { run("fill", stream, {at, bytes / 8, seed, ~0ull, 0}); }

// How many words differ from the pattern; waits for the stream.
inline std::uint64_t wrong_words(CUdeviceptr at, std::size_t bytes, std::uint64_t seed, CUstream stream, std::uint64_t mask = ~0ull) {
  static Memory bad(2 * kMiB);
  static Pinned seen(4096);
  run("fill", stream, {bad.at, 1, 0, 0, 0});
  run("check", stream, {at, bytes / 8, seed, mask, 0, bad.at});
  MUST(cuMemcpyDtoHAsync(seen.at, bad.at, 8, stream));
  MUST(cuStreamSynchronize(stream));
  return *seen.words();
}

// cuBLAS by its C interface where a library is named, so that GEMMs are the ones that PyTorch runs; without one the load
// "gemm" is the arithmetic-bound kernel, and results say so.
class Gemm {
 public:
  static constexpr int kSide = 4096;
  static void use(const char* library);
  static bool real() { return handle_ != nullptr; }
  static void launch(CUstream stream, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c);

 private:
  static void* handle_;
  static int (*multiply_)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int, int, int);
  static int (*set_stream_)(void*, CUstream);
};

// Work of one kind on a stream of its own, launched by a thread that stays a few launches ahead of the device.
enum class Kind { kNone, kGemm, kBandwidth, kTiny };
const char* name_of(Kind kind);

class Load {
 public:
  explicit Load(Kind kind);
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load();
  void one();  // launches one piece of work and returns
  // Keeps the device busy from another thread until stopped; how many pieces have ended so far.
  void start();
  void stop();
  std::uint64_t done() const { return done_; }
  std::vector<double> launches;  // us of each launch call, of one()
  Stream stream;

 private:
  const Kind kind_;
  std::unique_ptr<Memory> a_, b_, c_;
  std::vector<std::unique_ptr<Event>> ring_;
  std::uint64_t sent_ = 0;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> running_{false};
  std::thread thread_;
};

// Pieces of load a second while `during` runs (or for that many seconds).
double rate_of(Load& load, const std::function<void()>& during);

// The phases. Each prints lines and returns.
void attributes();
void costs();
void stalls();
void homes();
void reflow();
void link(const std::string& folder);
void tickets();
void crash(const std::string& which);
void host_net();
void round_trip();

}  // namespace gpu
