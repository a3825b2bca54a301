// A tier of the host below a GPU: whatever comes from the GPU's memory, or goes there, passes through a pinned buffer.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "../core/system.hpp"
#include "../core/tier.hpp"
#include "device.hpp"

namespace ebbtide {

class StagedTier final : public Tier {
 public:
  StagedTier(Device& device, std::unique_ptr<Tier> below) : device_(device), below_(std::move(below)) {}

  int reserve(const Extent& extent) override { return below_->reserve(extent); }
  int reserve_ahead(const Extent& extent) override { return below_->reserve_ahead(extent); }
  void release(const Extent& extent) override { below_->release(extent); }
  void inherit(const Extent& extent, bool inherited) override { below_->inherit(extent, inherited); }
  std::uint64_t used() const override { return below_->used(); }
  std::uint64_t capacity() const override { return below_->capacity(); }
  std::uint64_t packed_peak() const override { return below_->packed_peak(); }
  std::uint64_t sure_bytes() const override { return below_->sure_bytes(); }

  int write(const Extent& chunk, const void* from) const override;
  int read(const Extent& chunk, iovec* parts, int count) const override;

  const char* name() const override { return below_->name(); }
  const char* where() const override { return below_->where(); }
  const char* cure(int error) const override { return below_->cure(error); }

 private:
  // A buffer of the threads that move: there are as many as are used at once.
  class Buffer {
   public:
    explicit Buffer(const StagedTier& tier);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    char* begin() const { return memory_->begin(); }

   private:
    const StagedTier& tier_;
    std::unique_ptr<Reservation> memory_;
  };

  Device& device_;
  const std::unique_ptr<Tier> below_;
  mutable std::mutex mutex_;  // guards the buffers that nobody uses
  mutable std::vector<std::unique_ptr<Reservation>> buffers_;
};

}  // namespace ebbtide
