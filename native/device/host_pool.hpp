// Pinned host memory as a tier below a GPU: one range of addresses, whose pages are had and pinned by windows as it fills.
// What comes from a tier below, or goes there, is copied as memory is.
#pragma once

#include "../core/free_runs.hpp"
#include "../core/system.hpp"
#include "../core/tier.hpp"
#include "../core/types.hpp"
#include "device.hpp"

namespace ebbtide {

class HostPool final : public Tier {
 public:
  // In bytes; of the region that ebbs here, whose pages are the device's.
  HostPool(Device& device, std::uint64_t capacity, std::uint64_t region_bytes);

  int reserve(const Extent& extent) override;
  void release(const Extent& extent) override;
  std::uint64_t used() const override { return used_; }
  std::uint64_t capacity() const override { return capacity_; }
  std::uint64_t sure_bytes() const override { return capacity_; }

  int write(const Extent& chunk, const void* from) const override;
  int read(const Extent& chunk, iovec* parts, int count) const override;

  const char* name() const override { return "pinned host memory"; }
  const char* where() const override { return "pinned host memory"; }
  const char* cure(int error) const override;

 private:
  static constexpr std::uint64_t kWindow = std::uint64_t{1} << 30;

  std::uint32_t units(const Extent& extent) const { return static_cast<std::uint32_t>(round_up(extent.bytes, page_) / page_); }
  std::uint32_t& place(const Extent& extent) const {  // holds unit + 1; of an extent, and of each page in it
    return reinterpret_cast<std::uint32_t*>(places_.begin())[extent.begin / page_];
  }
  char* address(const Extent& chunk) const {
    return space_.begin() + (place(chunk) - std::size_t{1}) * page_ + chunk.begin % page_;
  }
  bool grow();

  Device& device_;
  const std::uint64_t page_;
  const std::uint64_t capacity_;  // of whole huge pages
  Reservation space_;
  Reservation places_;
  FreeRuns free_;
  std::uint64_t grown_ = 0;  // bytes that have pages
  std::uint64_t used_ = 0;
};

}  // namespace ebbtide
