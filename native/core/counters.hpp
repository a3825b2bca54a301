// What the arena counts, all at one moment.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "types.hpp"

namespace ebbtide {

// See _torch.pyi for what each counter means.
struct Counters {
  std::uint64_t live = 0, resident = 0, reserved = 0, blocks = 0;
  std::uint64_t arena_limit = 0, unmanaged = 0, elsewhere = 0, elsewhere_peak = 0, process_peak = 0;
  std::uint64_t live_peak = 0, step_live_peak = 0, reserved_peak = 0, resident_peak = 0;
  double reserved_byte_ns = 0.0, resident_byte_ns = 0.0;
  std::int64_t measured_ns = 0;
  std::array<std::uint64_t, kKinds> evicted{}, fetched{}, written{};
  std::array<std::uint64_t, kKinds> resident_kinds{};
  std::array<std::int64_t, kStalls> stall_ns{};
  std::uint64_t operators = 0;
  std::uint64_t faults = 0, cancelled = 0;
  std::uint64_t made_anew = 0;  // bytes [Note: recipes]
  std::int64_t made_anew_ns = 0;
  std::uint64_t ingredients = 0;    // bytes that were made for others, and are in no place of the script's
  std::uint64_t looked_at = 0;      // storages, in search of victims
  std::uint64_t areas = 0;          // memory areas of the regions, at most
  std::array<std::int64_t, 2> copy_ns{};  // threads' time in fetches, in evictions
  std::uint64_t largest_operator_bytes = 0;
  std::uint64_t largest_operator_used = 0, largest_operand = 0;
  std::uint64_t stuck_at_bytes = 0;
  std::uint64_t held = 0;  // in memory, from outside: arrays, what a session keeps
  std::uint64_t refused = 0;  // allocations that the machine had no memory for
  // By slower tier: bytes that lie there (of the slowest: space), at most did (where they are packed), were written and read.
  std::vector<std::uint64_t> tier_used, tier_peak, tier_written, tier_read;
  std::string largest_operator, message;
  bool over_budget = false;
  bool tables_filled = false;
};

}  // namespace ebbtide
