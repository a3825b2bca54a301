#include "staged_tier.hpp"

#include <algorithm>
#include <utility>

#include "../core/block.hpp"

namespace ebbtide {

StagedTier::Buffer::Buffer(const StagedTier& tier) : tier_(tier) {
  {
    std::lock_guard lock(tier.mutex_);
    if (!tier.buffers_.empty()) {
      memory_ = std::move(tier.buffers_.back());
      tier.buffers_.pop_back();
      return;
    }
  }
  memory_ = std::make_unique<Reservation>(kChunk, kHugePage, PROT_READ | PROT_WRITE);
  std::fill_n(memory_->begin(), kChunk, 0);  // pages that are there pin many times as fast
  tier.device_.pin(memory_->begin(), kChunk);
}

StagedTier::Buffer::~Buffer() {
  std::lock_guard lock(tier_.mutex_);
  tier_.buffers_.push_back(std::move(memory_));
}

namespace {

// Calls carry(at, bytes) for consecutive parts that fit a buffer, until one fails.
template <typename Carry>
int by_parts(std::uint64_t bytes, Carry carry) {
  for (std::uint64_t at = 0; at < bytes; at += kChunk) {
    if (int error = carry(at, std::min<std::uint64_t>(kChunk, bytes - at)); error != 0) return error;
  }
  return 0;
}

}  // namespace

int StagedTier::write(const Extent& chunk, const void* from) const {
  if (!device_.owns(from)) return below_->write(chunk, from);
  Buffer buffer(*this);
  return by_parts(chunk.bytes, [&](std::uint64_t at, std::uint64_t bytes) {
    device_.copy_out(buffer.begin(), static_cast<const char*>(from) + at, bytes);
    return below_->write({chunk.region, chunk.begin + at, bytes}, buffer.begin());
  });
}

int StagedTier::read(const Extent& chunk, iovec* parts, int count) const {
  if (count == 0 || !device_.owns(parts[0].iov_base)) return below_->read(chunk, parts, count);
  Buffer buffer(*this);
  std::uint64_t begin = chunk.begin;
  for (int i = 0; i < count; ++i) {
    auto* to = static_cast<char*>(parts[i].iov_base);
    int error = by_parts(parts[i].iov_len, [&](std::uint64_t at, std::uint64_t bytes) {
      iovec part{buffer.begin(), bytes};
      if (int failed = below_->read({chunk.region, begin + at, bytes}, &part, 1); failed != 0) return failed;
      device_.copy_in(to + at, buffer.begin(), bytes);
      return 0;
    });
    if (error != 0) return error;
    begin += parts[i].iov_len;
  }
  return 0;
}

}  // namespace ebbtide
