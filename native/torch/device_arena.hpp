// A GPU for the arena: its driver, its memory as a region, and the tiers below. no_device.cpp stands for device_arena.cpp where
// Ebbtide was built without CUDA's headers.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "../core/region.hpp"
#include "../core/tier.hpp"

namespace ebbtide {

struct Births;

struct AskedDevice {
  std::string driver;  // its library
  int ordinal = 0;
};

struct DeviceMemory {
  std::string name;
  std::uint64_t free = 0, total = 0;  // bytes at this moment
  std::uint64_t page = 0;             // bytes
};

// Opens it, once: the process has one. Throws ArenaError, which says why it cannot be used.
DeviceMemory look_at_device(const AskedDevice& asked);

// --- of the device that was opened
// `cuda_face`: what ebbtide._cuda is asked for; none: the CPU's operators work on this device's memory.
std::unique_ptr<Region> device_region(const pybind11::object& cuda_face);
// Storages of PyTorch's own on GPU `ordinal` are told of, and its work is awaited, from now on; null: no more. `cuda_face` is
// ebbtide._cuda's.
void tell_births(const pybind11::object& cuda_face, int ordinal, const Births* births);
std::size_t device_page();
std::uint64_t (*outside_of_arena())();  // its memory that the process has besides
bool captures_now();  // the calling thread's work is recorded into a graph, which will run again and again
void await_work();    // that the calling thread has asked for, so far
std::unique_ptr<Tier> host_pool(std::uint64_t capacity);
std::unique_ptr<Tier> staged(std::unique_ptr<Tier> of_the_host);
pybind11::capsule arena_face();  // for ebbtide._cuda

// Bytes a second to pinned host memory and back, and what moving a storage costs besides: an unmap and a map.
struct DeviceRates {
  double out = 0, back = 0;
  double latency_ns = 0;
};
DeviceRates measure_device();

}  // namespace ebbtide
