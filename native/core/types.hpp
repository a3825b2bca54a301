// Words of the core. Nothing here knows torch or Python.
//
// [Note: what a state costs]
//   state     pages held   access        file copy
//   Dead      maybe        none          -        no storage; pages may be kept for the next block of this size
//   Dirty     all          read, write   stale    leaves only after a write
//   Clean     all          read          equal    leaves without a write; the first write faults and makes it Dirty
//   Writing   all          read          partial  an eviction; a write faults and cancels it (Dirty)
//   Absent    none         none          equal    any access faults and fetches it
//   Reading   all, hidden  none          equal    a fetch; the pages appear at the address all at once, Clean
#pragma once

#include <cstddef>
#include <cstdint>

namespace ebbtide {

inline constexpr std::size_t kSmallPage = std::size_t{4} << 10;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

enum class State : std::uint8_t { Dead, Dirty, Clean, Writing, Absent, Reading };

// What a storage is to the training step. The order is that of every per-kind array.
enum class Kind : std::uint8_t { Parameter, Gradient, OptimizerState, Activation, Other };
inline constexpr std::size_t kKinds = 5;

// Why a thread stood still.
enum class Stall : std::uint8_t { Room, LatePrefetch, DemandFetch };
inline constexpr std::size_t kStalls = 3;

using BlockId = std::uint32_t;
inline constexpr BlockId kNoBlock = ~BlockId{0};
inline constexpr std::uint32_t kNever = ~std::uint32_t{0};  // no tick, no number

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// The pages of a storage: a body of huge ones, and a tail of small ones for the rest. Where the rest nearly fills a
// huge page it gets one too: rounding may cost a sixteenth. (7 MiB: three huge pages and 1 MiB of small ones.)
struct Shape {
  std::uint32_t body = 0;  // huge pages
  std::uint64_t tail = 0;  // bytes, in small pages

  std::uint32_t small_pages() const { return static_cast<std::uint32_t>(tail / kSmallPage); }
  std::uint64_t bytes() const { return body * kHugePage + tail; }
};

constexpr Shape shape_of(std::size_t nbytes) {
  auto body = static_cast<std::uint32_t>(nbytes / kHugePage);
  std::size_t tail = round_up(nbytes % kHugePage, kSmallPage);
  if (tail > 0 && kHugePage - tail <= nbytes / 16) return {body + 1, 0};
  return {body, tail};
}

}  // namespace ebbtide
