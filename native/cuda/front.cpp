#include "front.hpp"

#include <c10/core/impl/GPUTrace.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "face.hpp"

namespace ebbtide {

namespace {

constexpr std::uint64_t kAll = ~std::uint64_t{0};
// PyTorch rounds what it asks the driver for up: to 20 MiB at least, and to a power of two where it is told to.
constexpr std::uint64_t kLeastSegment = std::uint64_t{32} << 20;

std::atomic<Front*> front = nullptr;

// What the allocation of PyTorch's that is under way in this thread was asked for.
thread_local std::size_t wanted_bytes = 0;

class Wanted {
 public:
  explicit Wanted(std::size_t bytes) : before_(std::exchange(wanted_bytes, bytes)) {}
  ~Wanted() { wanted_bytes = before_; }
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;

 private:
  const std::size_t before_;
};

std::string gib(double bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << bytes / static_cast<double>(std::uint64_t{1} << 30) << " GiB";
  return out.str();
}

}  // namespace

// PyTorch calls it under its allocator's lock whenever that has found nothing in its cache, before it asks the driver (D2).
class GiveBack final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    if (the_front() != nullptr) the_front()->give_back_what_lacks();
    return false;  // what went is the driver's: PyTorch's cache has no more than it had
  }
};

Front::Front(native::CUDAAllocator& behind, const ArenaFace& arena, DeviceIndex device, std::size_t min_bytes)
    : Forwarding(behind), arena_(arena), device_(device), min_bytes_(std::max<std::size_t>(min_bytes, 1)) {}

// ---- whose an allocation is --------------------------------------------------------------------------------------

bool Front::serves(std::size_t bytes) {
  if (bytes < min_bytes_ || !on_) return false;
  bool serves = c10::cuda::current_device() == device_ && !pools_.take(current_stream()) && !is_capturing(current_stream());
  ++(serves ? served_ : left_alone_);
  return serves;
}

DataPtr Front::allocate(size_t bytes) {
  if (serves(bytes)) return allocate_managed(bytes);
  Wanted wanted(bytes);
  return behind().allocate(bytes);
}

DataPtr Front::allocate_managed(std::size_t bytes) {
  void* at = arena_.allocate(bytes);
  DataPtr data(at, at, [](void* pointer) { the_front()->release(pointer); }, c10::Device(c10::kCUDA, device_));
  stats_.born(bytes, arena_.held_bytes());
  report(at, static_cast<std::int64_t>(bytes));
  return data;
}

void Front::release(void* at) {
  std::uint64_t bytes = arena_.size_of(at);
  arena_.release(at);
  stats_.died(bytes, arena_.held_bytes());
  report(at, -static_cast<std::int64_t>(bytes));
}

// As PyTorch's allocator tells its own.
void Front::report(void* at, std::int64_t change) {
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
    auto address = reinterpret_cast<std::uintptr_t>(at);
    change > 0 ? (*trace)->trace_gpu_memory_allocation(c10::kCUDA, address)
               : (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, address);
  }
  if (!c10::memoryProfilingEnabled()) return;
  auto stats = getDeviceStats(device_);
  auto total = [](const c10::CachingAllocator::StatArray& stat) { return static_cast<std::size_t>(stat[0].current); };
  c10::reportMemoryUsageToProfiler(at, change, total(stats.allocated_bytes), total(stats.reserved_bytes),
                                   c10::Device(c10::kCUDA, device_));
}

void* Front::raw_alloc(size_t bytes) {
  Wanted wanted(bytes);
  return behind().raw_alloc(bytes);
}

void* Front::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  Wanted wanted(bytes);
  return behind().raw_alloc_with_stream(bytes, stream);
}

void Front::raw_delete(void* at) { arena_.contains(at) ? release(at) : behind().raw_delete(at); }

bool Front::is_simple_data_ptr(const DataPtr& data) const {
  return arena_.contains(data.get()) ? data.get() == data.get_context() : behind().is_simple_data_ptr(data);
}

void Front::beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) {
  behind().beginAllocateToPool(device, pool, filter);
  if (device == device_) pools_.begin(pool, std::move(filter));
}

void Front::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  if (device == device_) pools_.end(pool);
  behind().endAllocateToPool(device, pool);
}

// ---- what is done with a storage ---------------------------------------------------------------------------------

void Front::recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) {
  arena_.contains(data.get()) ? arena_.used_on(data.get(), stream.stream()) : behind().recordStream(data, stream);
}

void* Front::getBaseAllocation(void* at, size_t* bytes) {
  return arena_.contains(at) ? arena_.base_of(at, bytes) : behind().getBaseAllocation(at, bytes);
}

native::ShareableHandle Front::shareIpcHandle(void* at) {
  TORCH_CHECK(!arena_.contains(at),
              "ebbtide: the memory of this CUDA tensor comes and goes, so no other process can be given it. Share a copy in "
              "PyTorch's own memory: with torch.cuda.use_mem_pool(torch.cuda.MemPool()): copy = tensor.clone()");
  return behind().shareIpcHandle(at);
}

// Memory that was mapped, as the arena's is, can be copied between GPUs only by the form that names both.
cudaError_t Front::memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                               bool peers) {
  if (to_device != from_device && (arena_.contains(to) || arena_.contains(from)))
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  return behind().memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
}

// ---- how much memory there is ------------------------------------------------------------------------------------

void Front::give_back_what_lacks() const {
  if (c10::cuda::current_device() != device_) return;
  std::uint64_t needed = 2 * std::uint64_t{wanted_bytes} + kLeastSegment;
  std::uint64_t free = behind().getMemoryInfo(device_).first;
  if (free < needed) arena_.give_back(needed - free);
}

void Front::emptyCache(MempoolId_t pool) {
  behind().emptyCache(pool);
  arena_.give_back(kAll);
}

void Front::cacheInfo(DeviceIndex device, size_t* largest) {
  behind().cacheInfo(device, largest);
  if (std::uint64_t told = largest_block_; told != 0 && device == device_) *largest = told;
}

void Front::set_budget(std::uint64_t nbytes) {
  budget_ = nbytes;
  require_fraction(behind().getMemoryFraction(device_));
}

void Front::setMemoryFraction(double fraction, DeviceIndex device) {
  if (device == device_) require_fraction(fraction);
  behind().setMemoryFraction(fraction, device);
}

// PyTorch holds its own allocations to the fraction, and knows nothing of the arena's. So that the process stays within it all
// the same, the budget has to.
void Front::require_fraction(double fraction) {
  if (fraction >= 1) return;  // nobody has set one
  auto budget = static_cast<double>(budget_.load());
  auto total = static_cast<double>(getMemoryInfo(device_).second);
  TORCH_CHECK(budget <= fraction * total, "ebbtide: the budget is ", gib(budget), ", and this process may have ",
              gib(fraction * total), " of its GPU (torch.cuda.set_per_process_memory_fraction with ", fraction,
              "). Use a budget within that, or set a fraction of ", std::ceil(100 * budget / total) / 100,
              " or more before the session begins");
}

c10::CachingDeviceAllocator::DeviceStats Front::getDeviceStats(DeviceIndex device) {
  auto stats = behind().getDeviceStats(device);
  if (device == device_) stats_.add_to(stats, arena_.held_bytes());
  return stats;
}

void Front::resetAccumulatedStats(DeviceIndex device) {
  if (device == device_) stats_.reset_accumulated();
  behind().resetAccumulatedStats(device);
}

void Front::resetPeakStats(DeviceIndex device) {
  if (device == device_) stats_.reset_peaks();
  behind().resetPeakStats(device);
}

// ---- putting it in place -----------------------------------------------------------------------------------------

Front* the_front() { return front; }

void install_front(const ArenaFace& arena, DeviceIndex device, std::size_t min_bytes) {
  if (the_front() != nullptr) throw std::runtime_error("Ebbtide stands in front of PyTorch's CUDA allocator already");
  native::CUDAAllocator* behind = native::allocator.load();
  if (std::string name = behind->name(); name != "native") {
    throw std::runtime_error(
        "PyTorch's CUDA allocator here is \"" + name +
        "\", and Ebbtide can stand only in front of its native one: take backend: out of PYTORCH_CUDA_ALLOC_CONF (or "
        "PYTORCH_ALLOC_CONF), and leave torch.cuda.memory.change_current_allocator out of the script");
  }
  front = new Front(*behind, arena, device, min_bytes);
  native::allocator.store(front);
  c10::SetAllocator(c10::kCUDA, the_front());  // torch.accelerator asks there
}

}  // namespace ebbtide

namespace c10 {

REGISTER_FREE_MEMORY_CALLBACK(ebbtide, ebbtide::GiveBack)

}  // namespace c10
