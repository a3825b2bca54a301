#include "device.hpp"

#include <chrono>
#include <string>
#include <thread>

#include "../core/system.hpp"

namespace ebbtide {

namespace {
constexpr auto kLook = std::chrono::microseconds(20);

CUmemAllocationProp pinned_on(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return properties;
}

CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }
}  // namespace

Device::Device(const Driver& driver, int ordinal) : driver_(driver) {
  open(ordinal);
  use_here();
  CUmemAllocationProp properties = pinned_on(device_);
  check(driver_.cuMemGetAllocationGranularity(&granularity_, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "asking the GPU for its pages");
  void* words = nullptr;
  check(driver_.cuMemHostAlloc(&words, kMostStreams * sizeof(std::uint64_t), 0), "pinning memory");
  words_ = static_cast<std::uint64_t*>(words);
  out_ = own_stream();
  in_ = own_stream();
  out_stream_ = streams_[out_].stream;
}

// Until here nothing is lost by stopping. Most of what can be wrong has been looked for (src/ebbtide/host/cuda.py).
void Device::open(int ordinal) {
  CUresult result = driver_.cuInit(0);
  if (result == CUDA_SUCCESS) result = driver_.cuDeviceGet(&device_, ordinal);
  if (result == CUDA_SUCCESS) result = driver_.cuDevicePrimaryCtxRetain(&context_, device_);
  if (result == CUDA_SUCCESS) return;
  throw ArenaError("GPU " + std::to_string(ordinal) + " cannot be opened (" + name_of(driver_, result) +
                   "): another process may have it for itself, or no memory is left there; nvidia-smi lists its processes");
}

std::string Device::name() const {
  char text[128] = "";
  check(driver_.cuDeviceGetName(text, sizeof text, device_), "asking the GPU for its name");
  return text;
}

Device::Bytes Device::bytes() const {
  use_here();
  std::size_t free = 0, total = 0;
  check(driver_.cuMemGetInfo(&free, &total), "asking the GPU for its memory");
  return {free, total};
}

void Device::check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return;
  fatal((std::string(what) + ": " + name_of(driver_, result)).c_str(), 0);
}

void Device::use_here() const {
  thread_local const Device* current = nullptr;
  if (current == this) return;
  check(driver_.cuCtxSetCurrent(context_), "using the GPU in a thread");
  current = this;
}

char* Device::reserve(std::size_t bytes) {
  reserved_bytes_ = bytes;
  return reserved_ = reserve_more(bytes);
}

char* Device::reserve_more(std::size_t bytes) {
  CUdeviceptr at = 0;
  check(driver_.cuMemAddressReserve(&at, bytes, 0, 0, 0), "reserving addresses of the GPU");
  return reinterpret_cast<char*>(at);
}

std::optional<Handle> Device::create(std::size_t bytes) {
  use_here();
  CUmemAllocationProp properties = pinned_on(device_);
  Handle handle{};
  CUresult result = driver_.cuMemCreate(&handle, bytes, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  check(result, "making memory of the GPU");
  return handle;
}

void Device::destroy(Handle handle) { check(driver_.cuMemRelease(handle), "giving memory of the GPU back"); }

void Device::map(char* at, std::size_t bytes, Handle handle, bool read_only) {
  use_here();
  check(driver_.cuMemMap(number(at), bytes, 0, handle, 0), "mapping memory of the GPU");
  set_access(at, bytes, read_only);
}

void Device::unmap(char* at, std::size_t bytes) {
  use_here();
  check(driver_.cuMemUnmap(number(at), bytes), "unmapping memory of the GPU");
}

void Device::set_access(char* at, std::size_t bytes, bool read_only) {
  use_here();
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  access.flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(driver_.cuMemSetAccess(number(at), bytes, &access, 1), "setting access to memory of the GPU");
}

// --- streams

StreamNumber Device::own_stream() {
  CUstream stream = nullptr;
  check(driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream");
  return number_of(stream);
}

StreamNumber Device::number_of(CUstream stream) {
  std::lock_guard lock(mutex_);
  auto [found, is_new] = numbers_.try_emplace(stream, static_cast<StreamNumber>(streams_.size()));
  if (is_new) {
    if (streams_.size() == kMostStreams) fatal("too many CUDA streams", 0);
    std::atomic_ref(words_[streams_.size()]).store(0);
    streams_.push_back({stream});
  }
  return found->second;
}

void Device::uses(StreamNumber stream) {
  std::lock_guard lock(mutex_);
  streams_[stream].unmarked = true;
}

Ticket Device::mark(StreamNumber stream) {
  use_here();
  std::lock_guard lock(mutex_);
  return mark_locked(stream);
}

// A mark would become a part of the graph. It is made when the stream is marked next, after the capture.
bool Device::is_captured(CUstream stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(driver_.cuStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Ticket Device::mark_locked(StreamNumber stream) {
  Stream& s = streams_[stream];
  if (s.unmarked && is_captured(s.stream)) return {stream, s.last + 1};
  if (s.unmarked) {
    check(driver_.cuStreamWriteValue64(s.stream, number(&words_[stream]), ++s.last, 0), "marking a stream");
    s.unmarked = false;
  }
  return {stream, s.last};
}

bool Device::passed(const Ticket& ticket) const {
  return std::atomic_ref(words_[ticket.stream]).load(std::memory_order_acquire) >= ticket.number;
}

void Device::order(StreamNumber later, const Ticket& after) {
  if (later == after.stream || passed(after)) return;
  std::lock_guard lock(mutex_);
  check(
      driver_.cuStreamWaitValue64(streams_[later].stream, number(&words_[after.stream]), after.number, CU_STREAM_WAIT_VALUE_GEQ),
      "making a stream wait");
  streams_[later].unmarked = true;
}

void Device::require_alive() const {
  use_here();
  CUresult state = driver_.cuStreamQuery(out_stream_);
  if (state != CUDA_ERROR_NOT_READY) check(state, "work on the GPU");
}

void Device::wait(const Ticket& ticket) const {
  for (; !passed(ticket); std::this_thread::sleep_for(kLook)) require_alive();
}

// --- copies

void Device::await(CUstream stream) const {
  use_here();
  check(driver_.cuStreamSynchronize(stream), "waiting for a stream");
}

void Device::pin(void* host, std::size_t bytes) {
  use_here();
  check(driver_.cuMemHostRegister(host, bytes, CU_MEMHOSTREGISTER_PORTABLE), "pinning host memory");
}

void Device::unpin(void* host) { check(driver_.cuMemHostUnregister(host), "unpinning host memory"); }

void Device::copy_out(void* to, const char* from, std::size_t bytes) {
  use_here();
  std::unique_lock lock(mutex_);
  check(driver_.cuMemcpyDtoHAsync(to, number(from), bytes, streams_[out_].stream), "copying to the host");
  streams_[out_].unmarked = true;
  Ticket copied = mark_locked(out_);
  lock.unlock();
  wait(copied);
}

void Device::copy_in(char* to, const void* from, std::size_t bytes) {
  use_here();
  std::unique_lock lock(mutex_);
  check(driver_.cuMemcpyHtoDAsync(number(to), from, bytes, streams_[in_].stream), "copying to the GPU");
  streams_[in_].unmarked = true;
  Ticket copied = mark_locked(in_);
  lock.unlock();
  wait(copied);
}

}  // namespace ebbtide
