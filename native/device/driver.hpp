// The CUDA driver as one table of functions, filled when it is needed, from the real library or from a fake one.
//
// Every symbol is asked for with a pinned version (12.0), as PyTorch does, so that a newer driver binds no other behaviour.
#pragma once

#include <cuda.h>

#include <string>

// name as cuGetProcAddress knows it. decltype of the header's own declaration gives the signature.
// clang-format off
#define EBBTIDE_DRIVER_FUNCTIONS(X)                                                                                     \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) \
  X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate)      \
  X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAllocationGranularity) X(cuMemHostAlloc)        \
  X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync)                \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamWaitEvent)                     \
  X(cuStreamWriteValue64) X(cuStreamWaitValue64) X(cuStreamIsCapturing) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)    \
  X(cuEventSynchronize) X(cuEventElapsedTime) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel)              \
  X(cuGetErrorName)
// clang-format on

namespace ebbtide {

struct Driver {
#define EBBTIDE_MEMBER(name) decltype(&::name) name = nullptr;
  EBBTIDE_DRIVER_FUNCTIONS(EBBTIDE_MEMBER)
#undef EBBTIDE_MEMBER
};

using DriverLookup = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

// Fills the table: from `library` (libcuda.so.1, say), or by its cuGetProcAddress_v2. Empty, or why it cannot be.
std::string load(Driver& driver, const char* library);
std::string load(Driver& driver, DriverLookup lookup);

std::string name_of(const Driver& driver, CUresult error);

}  // namespace ebbtide
