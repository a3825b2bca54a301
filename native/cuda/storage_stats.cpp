#include "storage_stats.hpp"

#include <initializer_list>

namespace ebbtide {

namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

void add(StatArray& to, const StorageStats::Stat& stat) {
  for (StatType type : {StatType::AGGREGATE, StatType::LARGE_POOL}) {
    StorageStats::Stat& sum = to[static_cast<std::size_t>(type)];
    sum.current += stat.current;
    sum.peak += stat.peak;
    sum.allocated += stat.allocated;
    sum.freed += stat.freed;
  }
}

}  // namespace

void StorageStats::born(std::uint64_t nbytes, std::uint64_t held_bytes) {
  std::lock_guard lock(mutex_);
  storages_.increase(1);
  bytes_.increase(nbytes);
  hold(held_bytes);
}

void StorageStats::died(std::uint64_t nbytes, std::uint64_t held_bytes) {
  std::lock_guard lock(mutex_);
  storages_.decrease(1);
  bytes_.decrease(nbytes);
  hold(held_bytes);
}

void StorageStats::add_to(DeviceStats& stats, std::uint64_t held_bytes) {
  std::lock_guard lock(mutex_);
  hold(held_bytes);
  for (StatArray* count : {&stats.allocation, &stats.active}) add(*count, storages_);
  for (StatArray* bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes}) add(*bytes, bytes_);
  add(stats.reserved_bytes, held_);
}

void StorageStats::reset_accumulated() {
  std::lock_guard lock(mutex_);
  for (Stat* stat : {&storages_, &bytes_, &held_}) stat->reset_accumulated();
}

void StorageStats::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (Stat* stat : {&storages_, &bytes_, &held_}) stat->reset_peak();
}

void StorageStats::hold(std::uint64_t bytes) {
  auto before = static_cast<std::uint64_t>(held_.current);
  bytes > before ? held_.increase(bytes - before) : held_.decrease(before - bytes);
}

}  // namespace ebbtide
