// Words of the core. Nothing here knows torch or Python.
//
// [Note: what a state costs]
//   state     pages        access        slower tiers
//   Dead      maybe        none          none     no storage; a transfer may still have to drain
//   Dirty     all          read, write   none     evicted only after a write
//   Clean     all          read          some     evicted without a write; the first write faults and makes it Dirty
//   Writing   all          read          partial  an eviction; a write faults and cancels it (Dirty)
//   Absent    none         none          some     any access faults and fetches it
//   Reading   all, hidden  none          some     a fetch; the pages appear at the address all at once, Clean
//   Untouched none         none          none     a piece that nobody has used: not live [Note: pieces]
//   Blank     none         none          none     it has been used, and its first pages wait for room; they make it Dirty
//   Unmade    none         none          none     its maker makes its contents anew; any access faults and waits for that
// [Note: recipes]  The maker (native/torch/recipes.hpp) can make some contents anew: they have a recipe. Such a block is Clean, also
// where no slower tier has its contents, and then it leaves as Unmade. The first write takes its recipe away. What a recipe reads is
// guarded: it is read-only, even where it is Dirty. Before anybody writes to it, what is made of it is made, or loses its recipe.
// A storage in pieces has one recipe. A piece that somebody writes to loses it alone. Made again are all that are Unmade then.
// Ingredients are read, too, but need not last: their recipes are parts of others [Note: ingredients].
// Which slower tiers have equal contents is told by Block::valid. A copy between two of them changes no state. Nor does a
// migration: pages are fast memory's, or a slower one's that is used in place, as Block::home says [Note: in place].
//
// Reserved are the pages of the arena: under live storages, draining ones, cached (nobody's) and being read into.
// To evict is to write what is dirty and to take the pages; to write back is to write and keep them; to fetch is to read.
// A transient storage found no room at its birth, or lost it since. Unmanaged is the process's memory outside the arena.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ebbtide {

inline constexpr std::size_t kSmallPage = std::size_t{4} << 10;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

enum class State : std::uint8_t { Dead, Dirty, Clean, Writing, Absent, Reading, Untouched, Blank, Unmade };

// What a storage is to the training step. The order is that of every per-kind array.
enum class Kind : std::uint8_t { Parameter, Gradient, OptimizerState, Activation, Other };
inline constexpr std::size_t kKinds = 5;
inline constexpr std::array<const char*, kKinds> kKindNames{"parameter", "gradient", "optimizer_state", "activation", "other"};

// Why a thread stood still.
enum class Stall : std::uint8_t { Room, LatePrefetch, DemandFetch };
inline constexpr std::size_t kStalls = 3;

using BlockId = std::uint32_t;
inline constexpr BlockId kNoBlock = ~BlockId{0};
inline constexpr std::uint32_t kNever = ~std::uint32_t{0};  // no tick, no number

// A tier by its place in the order of speed: 0 is fast memory, the others are those that contents ebb to.
using Rank = std::uint8_t;
inline constexpr Rank kFast = 0;
inline constexpr Rank kMostTiers = 8;
using RankSet = std::uint8_t;  // bit r stands for the tier of rank r
constexpr RankSet bit(Rank rank) { return static_cast<RankSet>(1u << rank); }

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// The pages of a storage: huge ones where that wastes at most an eighth of its size (of 4 MiB and more, a third), else
// small ones.
struct Shape {
  std::size_t page = kSmallPage;
  std::uint32_t pages = 0;

  std::uint64_t bytes() const { return pages * page; }
};

constexpr std::size_t kMostBytes = std::size_t{1} << 48;  // no address space has more, and a shape counts less than 2^32 pages

constexpr Shape shape_of(std::size_t nbytes) {
  std::size_t page = round_up(nbytes, kHugePage) - nbytes <= nbytes / (nbytes < 2 * kHugePage ? 8 : 3) ? kHugePage : kSmallPage;
  return {page, static_cast<std::uint32_t>(round_up(nbytes, page) / page)};
}

// A line of the user's program, by its number in one recording.
struct LineOf {
  std::uint32_t number = 0;
  std::uint32_t recording = 0;
};

}  // namespace ebbtide
