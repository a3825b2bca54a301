#include "stub.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace c10 {

C10_DEFINE_REGISTRY(FreeCudaMemoryCallbacksRegistry, FreeMemoryCallback)

}  // namespace c10

namespace stub {

thread_local DeviceIndex device = 0;
thread_local std::int64_t stream = 1;
std::atomic<std::int64_t> capturing = 0;
std::atomic<cudaError_t> capturing_error = cudaSuccess;
std::atomic<cudaError_t> last_error = cudaSuccess;
std::atomic<std::size_t> free_bytes = std::size_t{80} << 30, total_bytes = std::size_t{80} << 30;
std::atomic<int> copies_that_name_both = 0;

c10::cuda::CUDAStream stream_of(DeviceIndex on, std::int64_t id) {
  return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED,
                               c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, on), id));
}

Native& pytorchs() {
  static auto* made = new Native;
  return *made;
}

Arena& arena() {
  static auto* made = new Arena;
  return *made;
}

std::vector<std::string> Native::take_notes() {
  std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

std::size_t Native::live() const {
  std::lock_guard lock(mutex_);
  return live_.size();
}

// As the native allocator does where its cache has nothing.
void* Native::make(std::size_t bytes) {
  std::lock_guard own(own_lock_);
  for (const auto& key : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    c10::FreeCudaMemoryCallbacksRegistry()->Create(key)->Execute();
  static std::size_t next = std::size_t{1} << 20;
  void* at = nullptr;
  {
    std::lock_guard lock(mutex_);
    at = reinterpret_cast<void*>(next);
    next += bytes + 1;
    live_.insert(at);
  }
  tell(native::TraceEntry::ALLOC, at, bytes);
  return at;
}

void Native::tell(native::TraceEntry::Action action, void* at, std::size_t bytes) {
  native::TraceEntry entry(action, device, reinterpret_cast<std::size_t>(at), bytes, nullptr, {0, 0}, {});
  for (const auto& tracker : trackers_) tracker(entry);
}

void Native::free(void* at) {
  std::lock_guard own(own_lock_);
  {
    std::lock_guard lock(mutex_);
    TORCH_CHECK(live_.erase(at) == 1, "invalid device pointer");
  }
  tell(native::TraceEntry::FREE_REQUESTED, at, 0);
  tell(native::TraceEntry::FREE_COMPLETED, at, 0);
}

DataPtr Native::allocate(size_t bytes) {
  note("allocate", bytes);
  void* at = make(bytes);
  return {at, at, raw_deleter(), c10::Device(c10::kCUDA, device)};
}

c10::DeleterFnPtr Native::raw_deleter() const {
  return [](void* at) { pytorchs().free(at); };
}

void* Native::raw_alloc(size_t bytes) { return note("raw_alloc", bytes), make(bytes); }
void* Native::raw_alloc_with_stream(size_t bytes, cudaStream_t on) {
  return note("raw_alloc_with_stream", bytes, on), make(bytes);
}
void Native::raw_delete(void* at) { note("raw_delete"), free(at); }

namespace {

constexpr std::size_t kRange = std::size_t{1} << 40;
char* const kBegin = reinterpret_cast<char*>(std::size_t{1} << 45);

bool contains(const void* at) { return at >= kBegin && at < kBegin + kRange; }

std::map<char*, std::size_t>::iterator find(const void* at) {
  auto& live = arena().live;
  auto found = live.upper_bound(static_cast<char*>(const_cast<void*>(at)));
  return found == live.begin() ? live.end() : std::prev(found);
}

void* allocate(std::size_t bytes) {
  std::lock_guard lock(arena().mutex);
  TORCH_CHECK_WITH(OutOfMemoryError, !arena().full, "ebbtide: no room");
  static char* next = kBegin;
  char* at = next;
  next += bytes + 1;
  arena().live[at] = bytes;
  return at;
}

void release(void* at) {
  std::lock_guard lock(arena().mutex);
  TORCH_CHECK(arena().live.erase(static_cast<char*>(at)) == 1, "no storage of the arena");
  arena().streams.erase(at);
}

std::uint64_t size_of(const void* at) {
  std::lock_guard lock(arena().mutex);
  return find(at)->second;
}

void* base_of(const void* at, std::size_t* nbytes) {
  std::lock_guard lock(arena().mutex);
  auto found = find(at);
  *nbytes = found->second;
  return found->first;
}

void used_on(const void* at, CUstream on) {
  std::lock_guard lock(arena().mutex);
  arena().streams[const_cast<void*>(at)].insert(on);
}

std::uint64_t give_back(std::uint64_t nbytes) {
  std::lock_guard lock(arena().mutex);
  std::size_t goes = std::min<std::size_t>(nbytes, arena().parked);
  arena().parked -= goes;
  arena().given_back += goes;
  return goes;
}

std::uint64_t live_bytes() {
  std::lock_guard lock(arena().mutex);
  std::uint64_t sum = 0;
  for (auto& [at, bytes] : arena().live) sum += bytes;
  return sum;
}

std::uint64_t held_bytes() {
  std::uint64_t live = live_bytes();
  std::lock_guard lock(arena().mutex);
  return live + arena().parked;
}

}  // namespace

const ebbtide::ArenaFace* stub_arena_face() {
  static const ebbtide::ArenaFace face{.allocate = allocate,
                                       .release = release,
                                       .contains = contains,
                                       .size_of = size_of,
                                       .base_of = base_of,
                                       .used_on = used_on,
                                       .give_back = give_back,
                                       .live_bytes = live_bytes,
                                       .held_bytes = held_bytes};
  return &face;
}

// For who loads the library: by PYTORCH_CUDA_ALLOC_CONF, as the real one does, but only the backend's name.
const bool named = [] {
  const char* given = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  std::string_view text = given != nullptr ? given : "";
  if (text.starts_with("backend:")) pytorchs().called = text.substr(8);
  const char* fraction = std::getenv("STUB_FRACTION");
  if (fraction != nullptr) pytorchs().fraction = std::atof(fraction);
  return true;
}();

}  // namespace stub

namespace c10::cuda {

namespace CUDACachingAllocator {

std::atomic<CUDAAllocator*> allocator = &stub::pytorchs();

}  // namespace CUDACachingAllocator

DeviceIndex current_device() { return stub::device; }
CUDAStream getCurrentCUDAStream(DeviceIndex on) { return stub::stream_of(on < 0 ? stub::device : on, stub::stream); }
cudaStream_t CUDAStream::stream() const { return stub::handle(id()); }
void c10_cuda_check_implementation(int32_t error, const char*, const char*, uint32_t, bool) {
  TORCH_CHECK(error == 0, "CUDA error ", error);
}

}  // namespace c10::cuda

extern "C" {

cudaError_t cudaStreamIsCapturing(cudaStream_t on, cudaStreamCaptureStatus* status) {
  if (stub::capturing_error != cudaSuccess) return stub::last_error = stub::capturing_error.load();
  bool is = stub::capturing != 0 && on == stub::handle(stub::capturing);
  *status = is ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return stub::last_error.exchange(cudaSuccess); }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = stub::free_bytes, *total = stub::total_bytes;
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, std::size_t, cudaStream_t) {
  ++stub::copies_that_name_both;
  return cudaSuccess;
}
}
