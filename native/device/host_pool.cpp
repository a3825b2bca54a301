#include "host_pool.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ebbtide {

HostPool::HostPool(Device& device, std::uint64_t capacity, std::uint64_t region_bytes)
    : device_(device),
      page_(device.granularity()),
      capacity_(capacity / kHugePage * kHugePage),
      space_(std::max<std::uint64_t>(capacity_, kHugePage), kHugePage, PROT_NONE),
      places_(region_bytes / page_ * sizeof(std::uint32_t), kSmallPage, PROT_READ | PROT_WRITE),
      free_(static_cast<std::uint32_t>(std::max<std::uint64_t>(capacity_, kHugePage) / page_)) {}

// Pages that are there pin many times as fast as pages that are not.
bool HostPool::grow() {
  std::uint64_t bytes = std::min(kWindow, capacity_ - grown_);
  if (bytes == 0) return false;
  char* at = space_.begin() + grown_;
  must_map(at, bytes, true);
  for (std::uint64_t touched = 0; touched < bytes; touched += kSmallPage) static_cast<volatile char*>(at)[touched] = 0;
  device_.pin(at, bytes);
  free_.give({static_cast<Slot>(grown_ / page_), static_cast<std::uint32_t>(bytes / page_)});
  grown_ += bytes;
  return true;
}

int HostPool::reserve(const Extent& extent) {
  std::uint32_t needed = units(extent);
  while (!free_.fits(needed)) {
    if (!grow()) return ENOSPC;
  }
  Run run = free_.take(needed);
  std::uint32_t* first = &place(extent);
  for (std::uint32_t i = 0; i < needed; ++i) first[i] = run.first + i + 1;
  used_ += needed * page_;
  return 0;
}

void HostPool::release(const Extent& extent) {
  free_.give({place(extent) - 1, units(extent)});
  used_ -= units(extent) * page_;
}

int HostPool::write(const Extent& chunk, const void* from) const {
  device_.owns(from) ? device_.copy_out(address(chunk), static_cast<const char*>(from), chunk.bytes)
                     : void(std::memcpy(address(chunk), from, chunk.bytes));
  return 0;
}

int HostPool::read(const Extent& chunk, iovec* parts, int count) const {
  const char* from = address(chunk);
  for (int i = 0; i < count; ++i) {
    auto [to, bytes] = parts[i];
    device_.owns(to) ? device_.copy_in(static_cast<char*>(to), from, bytes) : void(std::memcpy(to, from, bytes));
    from += bytes;
  }
  return 0;
}

const char* HostPool::cure(int) const { return "give it more: --host"; }

}  // namespace ebbtide
