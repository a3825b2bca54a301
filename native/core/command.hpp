// One command of a schedule. A plan is lowered to these once (native/simulate/lowering.hpp); the simulator issues them and the
// arena carries them out as they are. ebbtide.ir.schedule has them in columns.
#pragma once

#include <array>
#include <cstdint>

#include "types.hpp"

namespace ebbtide {

// Evict, Fetch: copy to a slower, a faster tier. Drop: give the contents up on the source.
enum class Verb : std::uint8_t { Evict, Drop, Fetch };
inline constexpr std::array<const char*, 3> kVerbNames{"evict", "drop", "fetch"};

// What becomes of the contents on the tier that a copy was made of, once it is done.
enum class Then : std::uint8_t {
  Keep,       // they are wanted on both
  Drop,       // they are given up, unless they are in use by then
  DropInUse,  // even from under an operator: chaos
};

struct Command {
  std::uint32_t tick;
  Verb verb;
  std::uint32_t storage;
  Rank source;
  Rank target = kFast;  // of a drop from fast memory: where contents go that have changed since; of another drop: none
  Then then = Then::Keep;  // of an eviction from fast memory. Drop: no use comes before its drop, so it leaves once it is written
  std::uint32_t earliest = 0;  // a late fetch into fast memory may move forward to this tick, and only through headroom
  std::uint32_t due = 0;  // the tick that counts on the copy; where it is smaller than `tick`, one of the next step

  bool operator==(const Command&) const = default;
};

}  // namespace ebbtide
