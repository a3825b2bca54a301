// Who sees the operators of this process: the arena, or without one the recorder that moves nothing.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <span>

#include "../core/operators.hpp"
#include "../core/recording.hpp"

namespace ebbtide {

struct Counters;

// The smallest storage that an arena manages, unless it is told otherwise. Without an arena groups are cut as with one.
inline constexpr std::uint64_t kManagedBytes = std::uint64_t{64} << 10;

// Small elements of a fused optimizer's lists share a group of so many bytes at most. The same for every budget: a
// step's ticks must not depend on it.
inline constexpr std::uint64_t kGroupBytes = std::uint64_t{256} << 10;

class Watch {
 public:
  virtual ~Watch() = default;

  virtual bool on() const = 0;  // false in a forked child, and where there is nothing to see
  virtual bool records() const = 0;
  virtual const void* find(c10::StorageImpl& storage) = 0;  // its address, or null for one that is not watched

  virtual void enter(const char* name, std::span<const Operand> operands, Work work) = 0;
  virtual void exit() = 0;
  virtual std::uint64_t note_need(const char* name, std::span<const Operand> operands) = 0;  // their bytes
  virtual void prefetch(std::span<const Operand> operands) = 0;

  virtual Counters begin_step(bool record) = 0;  // as the arena reads them at that moment; without one all are 0
  virtual Counters end_step(bool completed) = 0;
  virtual Recording take_recording() = 0;
  virtual void describe(const char* arguments, Phase phase) = 0;
  virtual std::uint32_t enter_module(const char* name) = 0;
  virtual std::uint32_t enter_module(std::uint32_t number) = 0;
  virtual std::uint32_t module() = 0;
  virtual void classify(const void* address, Kind kind) = 0;
};

// Null before any. An arena that starts takes over.
Watch* the_watch();
void set_watch(Watch* watch);
void watch_arena();

}  // namespace ebbtide
