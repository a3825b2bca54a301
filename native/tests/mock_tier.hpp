// Slower tiers for tests, with room for so much, a speed, and a share of calls that fail: bytes in another mapping, of which
// what is released is written over, so that whoever reads it afterwards is found out; and memory that is used in place, which
// counts the pages that come and go.
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

struct Behaviour {
  std::uint64_t capacity = std::uint64_t{1} << 40;
  std::int64_t ns_per_mib = 0;
  double write_errors = 0.0;  // chance of each chunk
  double read_errors = 0.0;
};

// Chances, and time that passes.
class Fate {
 public:
  bool befalls(double chance) {
    if (chance <= 0.0) return false;
    std::uint64_t x = random_.fetch_add(0x9E3779B97F4A7C15ull);  // splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return static_cast<double>((x ^ (x >> 31)) >> 11) / static_cast<double>(1ull << 53) < chance;
  }
  static void take_time(const Behaviour& behaviour, std::uint64_t bytes) {
    if (behaviour.ns_per_mib > 0)
      std::this_thread::sleep_for(std::chrono::nanoseconds(behaviour.ns_per_mib * static_cast<std::int64_t>(bytes) >> 20));
  }

 private:
  std::atomic<std::uint64_t> random_{1};
};

class MockTier final : public ebbtide::Tier {
 public:
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
  ebbtide::Space space() const override { return {used_, behaviour.capacity}; }

  int write(const ebbtide::Extent& chunk, const void* from) override {
    Fate::take_time(behaviour, chunk.bytes);
    if (fate_.befalls(behaviour.write_errors)) return EIO;
    copy(at(chunk), static_cast<const char*>(from), chunk.bytes);
    ++writes;
    return 0;
  }
  int read(const ebbtide::Extent& chunk, iovec* parts, int count) const override {
    Fate::take_time(behaviour, chunk.bytes);
    if (fate_.befalls(behaviour.read_errors)) return EIO;
    const char* from = at(chunk);
    for (int i = 0; i < count; from += parts[i].iov_len, ++i) copy(static_cast<char*>(parts[i].iov_base), from, parts[i].iov_len);
    ++reads;
    return 0;
  }

  ebbtide::Failure explain(int) const override { return {"the mock tier", "mend the test"}; }

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
  ebbtide::Reservation memory_[ebbtide::kRegions];
  ebbtide::Reservation reserved_[ebbtide::kRegions];  // a byte for each small page
  std::atomic<std::uint64_t> used_{0};
  mutable Fate fate_;
};

// Its pages are those of fast memory: nothing moves.
class MockMemory final : public ebbtide::InPlaceTier {
 public:
  explicit MockMemory(const Behaviour& behaviour) : behaviour(behaviour) {}

  int reserve(const ebbtide::Extent& e) override {
    if (used_ + e.bytes > behaviour.capacity) return ENOSPC;
    used_ += e.bytes;
    return 0;
  }
  void release(const ebbtide::Extent& e) override { used_ -= e.bytes; }
  ebbtide::Space space() const override { return {used_, behaviour.capacity}; }
  int take(void* pages, std::size_t bytes) override { return move(pages, bytes, behaviour.write_errors, taken); }
  int give_back(void* pages, std::size_t bytes) override { return move(pages, bytes, behaviour.read_errors, given_back); }
  ebbtide::Failure explain(int) const override { return {"the mock memory", "mend the test"}; }

  Behaviour behaviour;
  std::atomic<std::uint64_t> taken{0}, given_back{0};  // bytes

 private:
  int move(void* pages, std::size_t bytes, double errors, std::atomic<std::uint64_t>& moved) {
    CHECK(reinterpret_cast<std::uintptr_t>(pages) % ebbtide::kSmallPage == 0 && bytes % ebbtide::kSmallPage == 0 && bytes > 0);
    Fate::take_time(behaviour, bytes);
    if (fate_.befalls(errors)) return ENOMEM;
    moved += bytes;
    return 0;
  }

  std::atomic<std::uint64_t> used_{0};
  Fate fate_;
};
