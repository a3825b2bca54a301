// The device's memory, as CUDA's caching allocator gives it out; pinned memory; the generator; PyTorch's hooks to all.

#include "lagging.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>

namespace lagging {
namespace {

constexpr size_t PAGE = 4096;
constexpr size_t GRAIN = 512;  // allocations are counted in multiples of it, as CUDA's are

size_t rounded(size_t bytes, size_t grain) { return (bytes + grain - 1) / grain * grain; }

struct Block {
  char* start;
  size_t reserved;       // bytes that are mapped
  size_t allocated = 0;  // bytes that its present use counts for
  c10::Stream stream;
  std::vector<c10::Stream> others;           // which its present use was recorded on
  std::vector<std::shared_ptr<Mark>> awaited;  // until it may be given out again
};

void delete_block(void* pointer);

// A block is mapped for a stream and stays with it. A freed block goes to the stream's next allocation of about its size
// at once, since that stream works in its order; if it was recorded on other streams, once they have come so far.
class Allocator final : public c10::DeviceAllocator {
 public:
  bool initialized() override { return true; }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, device()};
    void* start = nullptr;
    int64_t allocated = 0;
    size_t total = 0;
    size_t reserved = 0;
    {
      std::lock_guard lock(mutex_);
      Block& block = take(rounded(bytes, PAGE), rounded(bytes, GRAIN));
      block.allocated = rounded(bytes, GRAIN);
      count(block, true);
      start = block.start;
      allocated = static_cast<int64_t>(block.allocated);
      std::tie(total, reserved) = totals();
    }
    c10::reportMemoryUsageToProfiler(start, allocated, total, reserved, device());
    return {start, start, &delete_block, device()};
  }

  void free(void* pointer) {
    int64_t allocated = 0;
    size_t total = 0;
    size_t reserved = 0;
    {
      std::lock_guard lock(mutex_);
      Block& block = *blocks_.at(pointer);
      allocated = static_cast<int64_t>(block.allocated);
      count(block, false);
      for (const c10::Stream& other : block.others) block.awaited.push_back(mark(other));
      block.others.clear();
      if (block.awaited.empty()) {
        give_back(block);
      } else {
        awaiting_.push_back(&block);
      }
      std::tie(total, reserved) = totals();
    }
    c10::reportMemoryUsageToProfiler(pointer, -allocated, total, reserved, device());
  }

  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    launch(current_stream(), [=] { std::memcpy(to, from, bytes); });
    synchronize(current_stream());
  }

  // Ignores memory of others, as CUDA's does.
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (!pointer.get() || pointer.get_deleter() != &delete_block) return;
    std::lock_guard lock(mutex_);
    Block& block = *blocks_.at(pointer.get_context());
    const bool known = std::find(block.others.begin(), block.others.end(), stream) != block.others.end();
    if (stream != block.stream && !known) block.others.push_back(stream);
  }

  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard lock(mutex_);
    unmap_free();
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {
    std::lock_guard lock(mutex_);
    for (auto* stat : counted()) stat->at(0).reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex) override {
    std::lock_guard lock(mutex_);
    for (auto* stat : counted()) stat->at(0).reset_peak();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    std::lock_guard lock(mutex_);
    return {capacity_ - std::min(capacity_, totals().second), capacity_};
  }

  void set_capacity(size_t bytes) {
    std::lock_guard lock(mutex_);
    capacity_ = bytes;
  }

 private:
  std::array<c10::CachingAllocator::StatArray*, 4> counted() {
    return {&stats_.allocation, &stats_.allocated_bytes, &stats_.segment, &stats_.reserved_bytes};
  }

  std::pair<size_t, size_t> totals() const {
    return {static_cast<size_t>(stats_.allocated_bytes[0].current), static_cast<size_t>(stats_.reserved_bytes[0].current)};
  }

  void count(const Block& block, bool more) {
    if (more) {
      stats_.allocation[0].increase(1);
      stats_.allocated_bytes[0].increase(block.allocated);
    } else {
      stats_.allocation[0].decrease(1);
      stats_.allocated_bytes[0].decrease(block.allocated);
    }
  }

  // The block that was freed last among those that fit best: the sooner it is written, the sooner a fault shows.
  Block& take(size_t pages, size_t bytes) {
    take_back_what_was_awaited();
    auto& free = free_[current_stream().id()];
    const auto fits = free.lower_bound(pages);
    if (fits != free.end() && fits->first <= pages + pages / 4) {
      Block& block = *fits->second.back();
      fits->second.pop_back();
      if (fits->second.empty()) free.erase(fits);
      return block;
    }
    if (totals().second + pages > capacity_) {
      ++stats_.num_alloc_retries;
      unmap_free();
    }
    if (totals().second + pages > capacity_) {
      ++stats_.num_ooms;
      const auto [total, reserved] = totals();
      c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), total, reserved, device());
      TORCH_CHECK_WITH(OutOfMemoryError, false, "The lagging device is out of memory: it has ", capacity_, " bytes, of which ",
                       total, " are allocated, and ", bytes, " are asked for.");
    }
    void* start = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(start != MAP_FAILED, "mmap of ", pages, " bytes");
    std::memset(start, GARBAGE, pages);
    stats_.segment[0].increase(1);
    stats_.reserved_bytes[0].increase(pages);
    auto& block = blocks_[start];
    block.reset(new Block{
        .start = static_cast<char*>(start), .reserved = pages, .stream = current_stream(), .others = {}, .awaited = {}});
    return *block;
  }

  void give_back(Block& block) {
    launch(block.stream, [start = block.start, bytes = block.reserved] { std::memset(start, GARBAGE, bytes); });
    free_[block.stream.id()][block.reserved].push_back(&block);
  }

  void take_back_what_was_awaited() {
    std::erase_if(awaiting_, [this](Block* block) {
      std::erase_if(block->awaited, [](const auto& mark) { return mark->passed(); });
      if (block->awaited.empty()) give_back(*block);
      return block->awaited.empty();
    });
  }

  // Waits for all work, as cudaFree does. The addresses stay taken, so that no later memory has them.
  void unmap_free() {
    for (Block* block : awaiting_) {
      for (const auto& mark : block->awaited) mark->wait();
    }
    take_back_what_was_awaited();
    synchronize_device();
    for (auto& [stream, free] : free_) {
      for (auto& [bytes, blocks] : free) {
        for (Block* block : blocks) unmap(*block);
      }
    }
    free_.clear();
  }

  void unmap(const Block& block) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    TORCH_CHECK(mmap(block.start, block.reserved, PROT_NONE, flags, -1, 0) != MAP_FAILED, "mmap");
    stats_.segment[0].decrease(1);
    stats_.reserved_bytes[0].decrease(block.reserved);
    blocks_.erase(block.start);
  }

  std::mutex mutex_;
  size_t capacity_ = size_t{1} << 34;
  c10::CachingDeviceAllocator::DeviceStats stats_;
  std::unordered_map<void*, std::unique_ptr<Block>> blocks_;
  std::unordered_map<c10::StreamId, std::map<size_t, std::vector<Block*>>> free_;
  std::vector<Block*> awaiting_;
};

Allocator& allocator() {
  static auto* allocator = new Allocator;
  return *allocator;
}

void delete_block(void* pointer) {
  if (pointer) allocator().free(pointer);
}

// Pinned memory, given out by PyTorch's own caching allocator. What is freed with no copy recorded on it is garbage at once.
class PinnedMemory final : public at::CachingHostAllocatorImpl<c10::Stream, std::shared_ptr<Mark>> {
 public:
  using HostBlock = at::HostBlock<c10::Stream>;

  void free(void* context) override {
    if (auto* block = static_cast<HostBlock*>(context)) {
      std::lock_guard lock(block->mutex_);
      if (block->streams_.empty()) std::memset(block->ptr_, GARBAGE, block->size_);
    }
    CachingHostAllocatorImpl::free(context);
  }

  std::vector<std::pair<size_t, pid_t>> pinned_by() const {
    std::lock_guard lock(mutex_);
    return pinned_by_;
  }

  bool has(const void* pointer) {
    std::lock_guard lock(mutex_);
    const auto after = sizes_.upper_bound(static_cast<const char*>(pointer));
    return after != sizes_.begin() && static_cast<const char*>(pointer) < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  void allocate_host_memory(size_t bytes, void** pointer) override {
    *pointer = std::aligned_alloc(PAGE, rounded(bytes, PAGE));
    std::memset(*pointer, GARBAGE, bytes);
    std::lock_guard lock(mutex_);
    pinned_by_.emplace_back(bytes, gettid());
    sizes_[static_cast<const char*>(*pointer)] = bytes;
  }

  void free_block(HostBlock* block) override {
    std::lock_guard lock(mutex_);
    sizes_.erase(static_cast<const char*>(block->ptr_));
    std::free(block->ptr_);
  }

  void record_stream(std::optional<std::vector<std::shared_ptr<Mark>>>& marks, c10::Stream stream) override {
    marks->push_back(mark(stream));
  }
  bool query_event(std::shared_ptr<Mark>& mark) override { return mark->passed(); }
  c10::Stream get_current_stream() const override { return current_stream(); }
  bool stream_is_capturing(c10::Stream) const override { return false; }

  mutable std::mutex mutex_;
  std::map<const char*, size_t> sizes_;
  std::vector<std::pair<size_t, pid_t>> pinned_by_;
};

void delete_pinned(void* context);

using PinnedAllocator = at::CachingHostAllocatorInterface<PinnedMemory, delete_pinned>;

PinnedAllocator& pinned() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

void delete_pinned(void* context) { pinned().free(context); }

// Draws as the CPU's does: a kernel of the device is one of the CPU's.
struct Generator final : at::CPUGeneratorImpl {
  Generator() {
    device_ = device();
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }

 private:
  Generator* clone_impl() const override {
    auto* other = new Generator;
    other->set_state(*get_state());
    return other;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return device(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr memory = storage.allocator()->allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept) launch(current_stream(), [to = memory.get(), from = storage.data(), kept] { std::memcpy(to, from, kept); });
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
};

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(DEVICE_TYPE, &allocator());
  at::setHostAllocator(DEVICE_TYPE, &pinned());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

c10::DeviceAllocator& memory() { return allocator(); }

void set_capacity(size_t bytes) { allocator().set_capacity(bytes); }

bool is_pinned(const void* pointer) { return pinned().impl_->has(pointer); }

std::vector<std::pair<size_t, pid_t>> pinned_by() { return pinned().impl_->pinned_by(); }

size_t pinned_bytes() { return static_cast<size_t>(pinned().get_stats().active_bytes.current); }

const at::Generator& default_generator() {
  static auto* generator = new at::Generator(at::make_generator<Generator>());
  return *generator;
}

}  // namespace lagging
