// The device's table of the driver's functions, for a program that ends where a call fails.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "../../native/device/driver.hpp"

namespace gpu {

inline ebbtide::Driver driver;

[[noreturn]] inline void stop(const std::string& why) {
  std::fprintf(stderr, "probe: %s\n", why.c_str());
  std::exit(1);
}

inline void load_driver(const char* library) {
  if (std::string why = ebbtide::load(driver, library); !why.empty()) stop(why);
}

inline std::string name_of(CUresult error) { return ebbtide::name_of(driver, error); }

inline void must(CUresult error, const char* what, const char* file, int line) {
  if (error != CUDA_SUCCESS) stop(std::string(file) + ":" + std::to_string(line) + ": " + what + ": " + name_of(error));
}

}  // namespace gpu

#define MUST(call) ::gpu::must(::gpu::driver.call, #call, __FILE__, __LINE__)
