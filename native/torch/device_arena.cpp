#include "device_arena.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "../device/device_region.hpp"
#include "../device/faces.hpp"
#include "../device/host_pool.hpp"
#include "../device/staged_tier.hpp"
#include "allocator.hpp"

namespace ebbtide {

namespace {

constexpr std::size_t kHugeRegion = Options{}.huge_region_bytes, kSmallRegion = Options{}.small_region_bytes;

// Never closed: threads use it until the process is gone.
Device* device = nullptr;
const CudaFace* cuda = nullptr;

std::size_t region_bytes() { return device->granularity() == kSmallPage ? kSmallRegion : kHugeRegion; }

Device& opened() {
  if (device == nullptr) throw ArenaError("no GPU was opened");
  return *device;
}

void* allocate(std::size_t nbytes) {
  try {
    return the_arena()->allocate(nbytes);
  } catch (const ArenaError& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "ebbtide: ", error.what());
  }
}

constexpr ArenaFace kFace{
    .allocate = allocate,
    .release = [](void* address) { the_arena()->release(address); },
    .contains = [](const void* address) { return the_arena()->contains(address); },
    .size_of = [](const void* address) { return the_arena()->size_of(address); },
    .base_of = [](const void* address, std::size_t* nbytes) { return the_arena()->base_of(address, nbytes); },
    .used_on = [](const void* address, CUstream stream) { the_arena()->used_on(address, stream); },
    .give_back = [](std::uint64_t nbytes) { return the_arena()->give_back(nbytes); },
    .live_bytes = [] { return the_arena()->counters().live; },
    .held_bytes = [] { return the_arena()->counters().reserved; },
};

}  // namespace

DeviceMemory look_at_device(const AskedDevice& asked) {
  static Driver driver;
  if (device == nullptr) {
    if (std::string why = load(driver, asked.driver.c_str()); !why.empty()) throw ArenaError(why);
    device = new Device(driver, asked.ordinal);
  }
  auto [free, total] = device->bytes();
  return {device->name(), free, total, device->granularity()};
}

std::unique_ptr<Region> device_region(const pybind11::object& cuda_face) {
  CUstream (*stream)() = [] { return CUstream{}; };
  if (!cuda_face.is_none()) {
    cuda = cuda_face.cast<pybind11::capsule>().get_pointer<CudaFace>();
    stream = cuda->stream;
  }
  return std::make_unique<DeviceRegion>(opened(), region_bytes(), stream);
}

void tell_births(const pybind11::object& cuda_face, int ordinal, const Births* births) {
  opened();  // whose streams are awaited
  cuda = cuda_face.cast<pybind11::capsule>().get_pointer<CudaFace>();
  cuda->tell(ordinal, births);
}

std::size_t device_page() { return opened().granularity(); }

std::uint64_t (*outside_of_arena())() { return cuda != nullptr ? cuda->outside_bytes : nullptr; }

bool captures_now() { return cuda != nullptr && cuda->captures(); }

void await_work() {
  if (cuda != nullptr && !cuda->captures()) device->await(cuda->stream());
}

std::unique_ptr<Tier> host_pool(std::uint64_t capacity) { return std::make_unique<HostPool>(opened(), capacity, region_bytes()); }

std::unique_ptr<Tier> staged(std::unique_ptr<Tier> of_the_host) {
  if (device == nullptr) return of_the_host;
  return std::make_unique<StagedTier>(*device, std::move(of_the_host));
}

// Medians of several, on a sample that is large enough for the link and small enough to be had on a full GPU.
DeviceRates measure_device() {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr int kRounds = 9;
  Device& d = opened();
  std::optional<Handle> handle = d.create(kBytes);
  if (!handle) throw ArenaError("the GPU has no memory left to measure it with: end what else uses it");
  static char* const place = d.reserve_more(2 * kBytes);
  Reservation host(kBytes, kHugePage, PROT_READ | PROT_WRITE);
  std::fill_n(host.begin(), kBytes, 0);
  d.pin(host.begin(), kBytes);
  d.map(place, kBytes, *handle, false);
  std::vector<double> out, back, remaps;
  auto timed = [](std::vector<double>& into, auto work) {
    std::int64_t begun = now_ns();
    work();
    into.push_back(static_cast<double>(std::max<std::int64_t>(now_ns() - begun, 1)));
  };
  for (int i = 0; i < kRounds; ++i) {
    timed(out, [&] { d.copy_out(host.begin(), place, kBytes); });
    timed(back, [&] { d.copy_in(place, host.begin(), kBytes); });
    timed(remaps, [&] {
      d.map(place + kBytes, kBytes, *handle, false);
      d.unmap(place + kBytes, kBytes);
    });
  }
  d.unmap(place, kBytes);
  d.destroy(*handle);
  d.unpin(host.begin());
  must_drop_pages(host.begin(), kBytes);
  auto median = [](std::vector<double>& of) {
    std::ranges::nth_element(of, of.begin() + kRounds / 2);
    return of[kRounds / 2];
  };
  return {kBytes * 1e9 / median(out), kBytes * 1e9 / median(back), median(remaps)};
}

pybind11::capsule arena_face() { return pybind11::capsule(&kFace, ArenaFace::kCapsule); }

}  // namespace ebbtide
