#include "driver.hpp"

#include <dlfcn.h>

namespace ebbtide {

std::string load(Driver& driver, const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) return std::string("no CUDA driver: ") + dlerror();
  auto lookup = reinterpret_cast<DriverLookup>(dlsym(handle, "cuGetProcAddress_v2"));
  if (lookup == nullptr) return "this CUDA driver has no cuGetProcAddress_v2: it is older than CUDA 12.0";
  return load(driver, lookup);
}

std::string load(Driver& driver, DriverLookup lookup) {
  constexpr int kVersion = 12000;
  std::string missing;
  auto find = [&](const char* name) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult found{};
    CUresult error = lookup(name, &function, kVersion, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    if (error != CUDA_SUCCESS || function == nullptr) missing = std::string("this CUDA driver has no ") + name;
    return function;
  };
// #name must not be expanded (cuda.h renames functions by macros), so it is turned into text at once.
#define EBBTIDE_LOAD(name) driver.name = reinterpret_cast<decltype(driver.name)>(find(#name));
  EBBTIDE_DRIVER_FUNCTIONS(EBBTIDE_LOAD)
#undef EBBTIDE_LOAD
  return missing;
}

std::string name_of(const Driver& driver, CUresult error) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(error, &name) != CUDA_SUCCESS || name == nullptr) return std::to_string(static_cast<int>(error));
  return name;
}

}  // namespace ebbtide
