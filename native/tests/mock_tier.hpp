// A slower tier for tests: bytes in another mapping, with room for so much, a speed, and a share of calls that fail.
// What is released is written over, so that whoever reads it afterwards is found out.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "../core/system.hpp"
#include "../core/tier.hpp"
#include "../core/types.hpp"
#include "check.hpp"

class MockTier final : public ebbtide::Tier {
 public:
  struct Behaviour {
    std::uint64_t capacity = std::uint64_t{1} << 40;
    std::int64_t ns_per_mib = 0;
    double write_errors = 0.0;  // chance of each chunk
    double read_errors = 0.0;
  };

  explicit MockTier(const Behaviour& behaviour)
      : behaviour(behaviour),
        memory_{{kHugeRegion, ebbtide::kHugePage, PROT_READ | PROT_WRITE},
                {kSmallRegion, ebbtide::kHugePage, PROT_READ | PROT_WRITE}},
        reserved_{{kHugeRegion / ebbtide::kSmallPage, ebbtide::kSmallPage, PROT_READ | PROT_WRITE},
                  {kSmallRegion / ebbtide::kSmallPage, ebbtide::kSmallPage, PROT_READ | PROT_WRITE}} {}

  int reserve(const ebbtide::Extent& e) override {
    if (used_ + e.bytes > behaviour.capacity) return ENOSPC;
    mark(e, 1);
    used_ += e.bytes;
    return 0;
  }
  void release(const ebbtide::Extent& e) override {
    mark(e, 0);
    used_ -= e.bytes;
    std::memset(at(e), 0xDD, e.bytes);
  }
  std::uint64_t used() const override { return used_; }
  std::uint64_t capacity() const override { return behaviour.capacity; }

  int write(const ebbtide::Extent& chunk, const void* from) const override {
    take_time(chunk.bytes);
    if (fails(behaviour.write_errors)) return EIO;
    copy(at(chunk), static_cast<const char*>(from), chunk.bytes);
    ++writes;
    return 0;
  }
  int read(const ebbtide::Extent& chunk, iovec* parts, int count) const override {
    take_time(chunk.bytes);
    if (fails(behaviour.read_errors)) return EIO;
    const char* from = at(chunk);
    for (int i = 0; i < count; from += parts[i].iov_len, ++i) copy(static_cast<char*>(parts[i].iov_base), from, parts[i].iov_len);
    ++reads;
    return 0;
  }

  const char* name() const override { return "the mock tier"; }
  const char* where() const override { return "the mock tier"; }
  const char* cure(int) const override { return "mend the test"; }

  Behaviour behaviour;
  mutable std::atomic<std::uint64_t> writes{0}, reads{0};  // of chunks

 private:
  static constexpr std::size_t kHugeRegion = std::size_t{8} << 30, kSmallRegion = std::size_t{1} << 30;  // make_arena's

  // Not seen by a race detector, rightly: a write that cancels an eviction races with it by design.
  __attribute__((no_sanitize("thread"))) static void copy(char* to, const char* from, std::size_t bytes) {
    auto* t = reinterpret_cast<volatile std::uint64_t*>(to);
    auto* f = reinterpret_cast<const volatile std::uint64_t*>(from);
    for (std::size_t i = 0; i < bytes / sizeof *t; ++i) t[i] = f[i];
  }
  char* at(const ebbtide::Extent& e) const { return memory_[e.region].begin() + e.begin; }
  // Each page is reserved once, and released once.
  void mark(const ebbtide::Extent& e, char to) {
    char* pages = reserved_[e.region].begin() + e.begin / ebbtide::kSmallPage;
    for (std::size_t i = 0; i < e.bytes / ebbtide::kSmallPage; ++i) {
      CHECK(pages[i] != to);
      pages[i] = to;
    }
  }
  bool fails(double chance) const {
    if (chance <= 0.0) return false;
    std::uint64_t x = random_.fetch_add(0x9E3779B97F4A7C15ull);  // splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return static_cast<double>((x ^ (x >> 31)) >> 11) / static_cast<double>(1ull << 53) < chance;
  }
  void take_time(std::uint64_t bytes) const {
    if (behaviour.ns_per_mib > 0)
      std::this_thread::sleep_for(std::chrono::nanoseconds(behaviour.ns_per_mib * static_cast<std::int64_t>(bytes) >> 20));
  }

  ebbtide::Reservation memory_[ebbtide::kRegions];
  ebbtide::Reservation reserved_[ebbtide::kRegions];  // a byte for each small page
  std::atomic<std::uint64_t> used_{0};
  mutable std::atomic<std::uint64_t> random_{1};
};
