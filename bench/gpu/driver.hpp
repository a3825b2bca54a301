// The CUDA driver as one table of functions, filled at run time from the real library or from the fake one beside this file.
//
// Every symbol is asked for with a pinned version (12.0, HOST_NUMA needs 12.2), as PyTorch does, so that a newer driver
// binds no other behaviour. Left out: whatever the probe does not call.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

// name as cuGetProcAddress knows it. decltype of the header's own declaration gives the signature.
#define GPU_DRIVER_FUNCTIONS(X)                                                                                         \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) \
  X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate)      \
  X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAllocationGranularity) X(cuMemHostAlloc)        \
  X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync)                \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamWaitEvent)                     \
  X(cuStreamWriteValue64) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)     \
  X(cuEventElapsedTime) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) X(cuGetErrorName)

namespace gpu {

struct Driver {
#define GPU_MEMBER(name) decltype(&::name) name = nullptr;
  GPU_DRIVER_FUNCTIONS(GPU_MEMBER)
#undef GPU_MEMBER
};

inline Driver driver;

[[noreturn]] inline void stop(const std::string& why) {
  std::fprintf(stderr, "probe: %s\n", why.c_str());
  std::exit(1);
}

inline void load_driver(const char* library) {
  constexpr int kVersion = 12000;
  void* handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) stop(std::string("no CUDA driver: ") + dlerror());
  using Lookup = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  const auto lookup = reinterpret_cast<Lookup>(dlsym(handle, "cuGetProcAddress_v2"));
  if (lookup == nullptr) stop("this driver has no cuGetProcAddress_v2: it is older than CUDA 12.0");
  const auto find = [&](const char* name) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult found{};
    const CUresult error = lookup(name, &function, kVersion, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    if (error != CUDA_SUCCESS || function == nullptr) stop(std::string("this driver has no ") + name);
    return function;
  };
// #name must not be expanded (cuda.h renames functions by macros), so it is turned into text at once.
#define GPU_LOAD(name) driver.name = reinterpret_cast<decltype(driver.name)>(find(#name));
  GPU_DRIVER_FUNCTIONS(GPU_LOAD)
#undef GPU_LOAD
}

inline std::string name_of(CUresult error) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(error, &name) != CUDA_SUCCESS || name == nullptr) return std::to_string(static_cast<int>(error));
  return name;
}

inline void must(CUresult error, const char* what, const char* file, int line) {
  if (error != CUDA_SUCCESS) stop(std::string(file) + ":" + std::to_string(line) + ": " + what + ": " + name_of(error));
}

}  // namespace gpu

#define MUST(call) ::gpu::must(::gpu::driver.call, #call, __FILE__, __LINE__)
