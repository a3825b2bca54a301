// In place of device_arena.cpp where there were no headers of CUDA to build it with.
#include "../core/system.hpp"
#include "device_arena.hpp"

namespace ebbtide {

namespace {
[[noreturn]] void refuse() {
  throw ArenaError(
      "Ebbtide was built without CUDA's headers: install it again where torch is a CUDA build, or with CUDA_HOME set");
}
}  // namespace

DeviceMemory look_at_device(const AskedDevice&) { refuse(); }
std::unique_ptr<Region> device_region(const pybind11::object&) { refuse(); }
void tell_births(const pybind11::object&, int, const Births*) { refuse(); }
std::size_t device_page() { refuse(); }
std::uint64_t (*outside_of_arena())() { return nullptr; }
bool captures_now() { return false; }
void await_work() {}
std::unique_ptr<Tier> host_pool(std::uint64_t) { refuse(); }
std::unique_ptr<Tier> staged(std::unique_ptr<Tier> of_the_host) { return of_the_host; }
pybind11::capsule arena_face() { refuse(); }
DeviceRates measure_device() { refuse(); }

}  // namespace ebbtide
