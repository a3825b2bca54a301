// A CUDA driver that needs no GPU: libfake_cuda.so, loaded by the probe in place of libcuda.so.1.
//
// Device memory is real memory at the device's addresses, a stream is a thread with a queue, an access is checked against
// the mappings when the work runs, not when it is enqueued. Offsets, parts of handles and parts of mappings are refused with
// an error. It is stricter than the hardware where a mistake would be silent there: it ends the process at a copy to or from
// host memory that is not pinned, a double map or release, and an unmap under work that is still queued (FAKE_CUDA_LENIENT=1
// lets that one pass: the work then meets error 700, which is sticky as on the hardware). One copy in eight is late by up
// to FAKE_CUDA_DELAY_US, so that what is not waited for is not there yet.
// FAKE_CUDA_GRANULE is what memory is given in, FAKE_CUDA_BYTES how much there is; FAKE_CUDA_PROTECTS=1 makes the CPU's own
// accesses meet the mappings.
// Left out: the legacy stream's order with other streams, capture, peers, a second context, costs: its times mean nothing.
#include "fake_kernels.hpp"

#include <sys/resource.h>

#undef cuMemHostRegister
#undef cuMemcpyDtoHAsync
#undef cuMemcpyHtoDAsync
#undef cuStreamDestroy
#undef cuStreamIsCapturing
#undef cuEventDestroy
#undef cuEventElapsedTime
#undef cuStreamWriteValue64
#undef cuStreamWaitValue64
#undef cuMemGetInfo
#undef cuDevicePrimaryCtxRetain

namespace fake {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* v) { return *v = 12000, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* d, int) { return *d = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int n, CUdevice) { return std::snprintf(name, n, "fake device"), CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) { return *value = 1, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { return *c = reinterpret_cast<CUcontext>(1), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  std::lock_guard lock(device().mutex);
  *total = device().capacity;
  *free = device().capacity - device().used;
  return state();
}
CUresult cuCtxSynchronize() {
  std::vector<FakeStream*> all;
  {
    std::lock_guard lock(streams_mutex);
    all = streams();
  }
  for (FakeStream* stream : all) stream->drain();
  return state();
}

CUresult cuMemGetAllocationGranularity(std::size_t* n, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  return *n = kGranule, CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* out, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  // Aligned to a granule, as the hardware's are.
  void* p = mmap(nullptr, bytes + kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = (reinterpret_cast<Address>(p) + kGranule - 1) / kGranule * kGranule;
  std::lock_guard lock(device().mutex);
  device().reservations[*out] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr p, std::size_t bytes) {
  std::lock_guard lock(device().mutex);
  auto found = device().reservations.find(p);
  if (found == device().reservations.end() || found->second != bytes) misuse("an address range freed that was not reserved so");
  const auto inside = device().mappings.lower_bound(p);
  if (inside != device().mappings.end() && inside->first < p + bytes) misuse("an address range freed with mappings in it");
  munmap(reinterpret_cast<void*>(p), bytes);
  device().reservations.erase(found);
  return CUDA_SUCCESS;
}
// A handle is a file.
bool allow_many_files() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &files) == 0;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* out, std::size_t bytes, const CUmemAllocationProp* prop, unsigned long long) {
  if (state() != CUDA_SUCCESS) return state();
  if (bytes == 0 || bytes % kGranule != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool on_host = prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  std::lock_guard lock(device().mutex);
  if (!on_host && device().used + bytes > device().capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  static const bool many = allow_many_files();
  const int file = !many ? -1 : memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!on_host) device().used += bytes;
  *out = device().next_handle++;
  device().handles[*out] = {file, bytes, on_host};
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(device().mutex);
  if (!device().handles.contains(handle)) misuse("a handle released twice");
  drop(handle);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr p, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  std::lock_guard lock(device().mutex);
  auto found = device().handles.find(handle);
  if (found == device().handles.end()) misuse("a map of a handle that is gone");
  if (offset != 0 || bytes != found->second.bytes) return CUDA_ERROR_NOT_SUPPORTED;
  auto after = device().mappings.lower_bound(p + 1);
  if (after != device().mappings.end() && after->first < p + bytes) misuse("a map over a mapping");
  if (after != device().mappings.begin() && std::prev(after)->first + std::prev(after)->second.bytes > p) misuse("a map over a mapping");
  void* place = reinterpret_cast<void*>(p);
  if (mmap(place, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.file, 0) != place) misuse("mmap failed");
  ++found->second.references;
  device().mappings[p] = {bytes, handle};
  if (found->second.on_host) device().pinned[p] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr p, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  int flags = 0;
  for (std::size_t i = 0; i < count; ++i) flags |= access[i].flags;
  if (flags == 0) require_idle(p, bytes);
  std::lock_guard lock(device().mutex);
  for (Address a = p; a < p + bytes;) {
    auto found = device().mappings.find(a);
    if (found == device().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    found->second.access = flags;
    // Unless asked otherwise the bytes stay writable for the process itself: allows() is what checks, so that error 700 is an
    // answer and no signal.
    const int protection = !kProtects || flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                           : flags == CU_MEM_ACCESS_FLAGS_PROT_READ                  ? PROT_READ
                                                                                     : PROT_NONE;
    mprotect(reinterpret_cast<void*>(a), found->second.bytes, protection);
    a += found->second.bytes;
  }
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr p, std::size_t bytes) {
  require_idle(p, bytes);
  std::lock_guard lock(device().mutex);
  for (Address a = p; a < p + bytes;) {
    auto found = device().mappings.find(a);
    if (found == device().mappings.end() || a + found->second.bytes > p + bytes) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t length = found->second.bytes;
    device().pinned.erase(a);
    // Unless asked otherwise they stay readable until the range is used again: work that is late is refused by allows(), not by
    // a signal.
    void* place = reinterpret_cast<void*>(a);
    if (mmap(place, length, kProtects ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != place) misuse("mmap failed");
    drop(found->second.handle);
    device().mappings.erase(found);
    a += length;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** out, std::size_t bytes, unsigned) {
  *out = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::lock_guard lock(device().mutex);
  device().pinned[reinterpret_cast<Address>(*out)] = bytes;
  return *out == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* p) {
  std::lock_guard lock(device().mutex);
  const auto found = device().pinned.find(reinterpret_cast<Address>(p));
  if (found == device().pinned.end()) misuse("host memory freed that was not allocated");
  munmap(p, found->second);
  device().pinned.erase(found);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister(void* p, std::size_t bytes, unsigned) {
  std::lock_guard lock(device().mutex);
  device().pinned[reinterpret_cast<Address>(p)] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* p) {
  std::lock_guard lock(device().mutex);
  if (device().pinned.erase(reinterpret_cast<Address>(p)) != 1) misuse("host memory unregistered that was not registered");
  return CUDA_SUCCESS;
}
CUresult copy(Address to, bool to_host, Address from, std::size_t bytes, CUstream stream) {
  require_pinned(to_host ? to : from, bytes);
  // A copy to a read-only mapping is refused without poisoning the context, as on the hardware.
  const Range on_device{to_host ? from : to, bytes, !to_host};
  if (of(stream).idle() && !device().allows(on_device)) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, {on_device, {to_host ? to : from, bytes, to_host, true}}, [=] { std::memcpy(at(to), at(from), bytes); });
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy(reinterpret_cast<Address>(to), true, from, bytes, stream);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return copy(to, false, reinterpret_cast<Address>(from), bytes, stream);
}

CUresult cuStreamCreate(CUstream* out, unsigned) { return *out = reinterpret_cast<CUstream>(new_stream()), state(); }
CUresult cuStreamSynchronize(CUstream stream) { return of(stream).drain(), state(); }
CUresult cuStreamQuery(CUstream stream) { return of(stream).idle() ? state() : CUDA_ERROR_NOT_READY; }
CUresult cuStreamDestroy(CUstream stream) {
  FakeStream& s = of(stream);
  s.drain();
  {
    std::lock_guard lock(streams_mutex);
    std::erase(streams(), &s);
  }
  {
    std::lock_guard lock(s.mutex);
    s.stopping = true;
    s.changed.notify_all();
  }
  s.thread.join();
  delete &s;
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) { return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  FakeEvent& e = of(event);
  std::uint64_t recorded = 0;
  {
    std::lock_guard lock(e.mutex);
    recorded = e.recorded;
  }
  return enqueue(stream, {}, [&e, recorded] {
    std::unique_lock lock(e.mutex);
    e.changed.wait(lock, [&] { return e.reached >= recorded; });
  });
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr p, cuuint64_t value, unsigned) {
  require_pinned(p, 8);
  return enqueue(stream, {}, [=] { std::atomic_ref<std::uint64_t>(*at(p)).store(value); });
}
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr p, cuuint64_t value, unsigned flags) {
  require_pinned(p, 8);
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, {}, [=] {
    while (std::atomic_ref<std::uint64_t>(*at(p)).load() < value) std::this_thread::sleep_for(std::chrono::microseconds(10));
  });
}
CUresult cuEventCreate(CUevent* out, unsigned) { return *out = reinterpret_cast<CUevent>(new FakeEvent), CUDA_SUCCESS; }
CUresult cuEventDestroy(CUevent event) { return delete &of(event), CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream) {
  FakeEvent& e = of(event);
  std::uint64_t mine = 0;
  {
    std::lock_guard lock(e.mutex);
    mine = ++e.recorded;
  }
  const auto reach = [&e, mine] {
    std::lock_guard lock(e.mutex);
    e.reached = mine;
    e.when = std::chrono::steady_clock::now();
    e.changed.notify_all();
  };
  of(stream).push(std::make_shared<Work>(Work{{}, reach, true}));
  return state();
}
CUresult cuEventQuery(CUevent event) {
  std::lock_guard lock(of(event).mutex);
  return of(event).reached >= of(event).recorded ? state() : CUDA_ERROR_NOT_READY;
}
CUresult cuEventSynchronize(CUevent event) {
  FakeEvent& e = of(event);
  std::unique_lock lock(e.mutex);
  e.changed.wait(lock, [&] { return e.reached >= e.recorded; });
  return state();
}
CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to) {
  *ms = std::chrono::duration<float, std::milli>(of(to).when - of(from).when).count();
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* out, const void*) { return *out = reinterpret_cast<CUmodule>(1), CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* out, CUmodule, const char* name) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<CUfunction>(const_cast<Kernel*>(&found->second));
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream,
                        void** parameters, void**) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(function);
  Words words;
  for (std::size_t i = 0; i < kernel.parameters; ++i) words.push_back(*static_cast<std::uint64_t*>(parameters[i]));
  return enqueue(stream, kernel.touches(words), [&kernel, words] { kernel.run(words); });
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    case CUDA_ERROR_NOT_READY: *name = "CUDA_ERROR_NOT_READY"; break;
    default: *name = "CUDA_ERROR_OTHER"; break;
  }
  return CUDA_SUCCESS;
}

}  // namespace fake

extern "C" CUresult cuGetProcAddress_v2_fake(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult*) asm("cuGetProcAddress_v2");
extern "C" CUresult cuGetProcAddress_v2_fake(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult*) {
#define FAKE_ENTRY(f) {#f, reinterpret_cast<void*>(&fake::f)},
  static const std::map<std::string, void*> all = {EBBTIDE_DRIVER_FUNCTIONS(FAKE_ENTRY)};
#undef FAKE_ENTRY
  const auto found = all.find(name);
  if (found == all.end()) return CUDA_ERROR_NOT_FOUND;
  *function = found->second;
  return CUDA_SUCCESS;
}
