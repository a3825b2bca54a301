// One step as it happened: ticks, lives of storages, and who used them when. ebbtide.capture makes a Trace of it.
// A tape writes it; from the fault handler it takes spans alone, for which there is room.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "operators.hpp"
#include "types.hpp"

namespace ebbtide {

// The runtime's clock: a tick is an operator on the step's thread (tick 0: before the first), and within it the arena's
// allocations on that thread are counted.
struct Clock {
  std::uint32_t tick = 0;
  std::uint32_t allocation = 0;
};

enum class Phase : std::uint8_t { Other, Backward, Optimizer };
inline constexpr std::array<const char*, 3> kPhaseNames{"other", "backward", "optimizer"};

struct RecordedTick {
  std::uint32_t name;         // in names
  std::uint32_t module;       // in names
  std::int64_t begin_ns;      // since the step began
  std::int64_t stalled_ns;    // of which were stalls
  std::uint64_t reserved = 0;  // bytes that the arena had reserved then
  std::uint32_t arguments = 0;  // in calls
  std::uint32_t depth = 0;      // how many operators it runs in
  Phase phase = Phase::Other;
};

// In place of packed bytes.
inline constexpr std::int64_t kNotPacked = -1;  // a tier that packs refuses the contents
inline constexpr std::int64_t kUnknown = -2;    // they were not looked at since they were written, if ever

struct RecordedStorage {
  std::uint64_t serial;       // of the allocation, unique in the process
  std::uint64_t nbytes;
  Kind kind = Kind::Other;
  std::uint32_t birth = kNever;       // tick; kNever: before the step
  std::uint32_t allocation = kNever;  // kNever: not by the step's thread within the step
  std::uint32_t depth = 0;            // how many operators its thread was in
  std::uint32_t death = kNever;       // first tick without it; kNever: it outlived the step
  bool scratch = false;               // in use all its life: born and gone within one operator, or pinned since before
  std::uint32_t module = 0;           // in names: where it was born
  std::uint32_t line = 0;             // in names: the line of the user's program that made it
  std::uint32_t thread = 0;           // that allocated it
  std::uint64_t whole = 0;            // of a piece, its storage: a number, unique in the process [Note: pieces]
  std::uint64_t freed_after = 0;      // the serial given last when it died within the step
  std::int64_t packed_bytes = kUnknown;  // what its contents take in a tier that packs, after the last operator that wrote them
};

// What the calling thread does is no part of the step: contents are made anew [Note: recipes].
inline thread_local bool off_the_record = false;

// Of the thread that asks; never given twice.
inline std::uint32_t thread_number() {
  static std::atomic<std::uint32_t> threads{0};
  thread_local const std::uint32_t number = threads++;
  return number;
}

// Ticks [first, last] of one operator.
struct RecordedUse {
  std::uint32_t storage;
  std::uint32_t first;
  std::uint32_t last;
  Access access;
  std::uint64_t moved;  // bytes, those of inner operators on the same storage among them
};

// A transfer to a slower or back to a faster tier, or a stall by its cause (overlapping ones are one). Times since the step
// began.
enum class Lane : std::uint8_t { Out, Back, StallRoom, StallLate, StallDemand };
static_assert(static_cast<int>(Lane::StallDemand) - static_cast<int>(Lane::StallRoom) == static_cast<int>(Stall::DemandFetch));
inline constexpr std::array<const char*, 5> kLaneNames{"out", "back", "stall_room", "stall_late", "stall_demand"};
static_assert(kLaneNames.size() == static_cast<std::size_t>(Lane::StallDemand) + 1);

struct RecordedSpan {
  std::uint32_t storage;  // kNever: a stall for capacity for a new one
  std::uint32_t tick;  // when it was asked for
  Lane lane;
  Rank source, target;  // of a transfer
  std::int64_t asked_ns;
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

inline constexpr std::size_t kMostTicks = std::size_t{1} << 18;
inline constexpr std::size_t kMostText = std::size_t{64} << 20;
inline constexpr std::size_t kMostSpans = std::size_t{1} << 16;  // room is made ahead: the fault handler adds to them

struct Recording {
  std::int64_t began_ns = 0;
  std::int64_t time_ns = 0;  // of the whole step, once it has ended
  std::int64_t stalled_ns = 0;
  std::vector<std::string> names{""};  // of operators, modules and lines
  std::vector<std::string> calls{""};  // shapes and numbers of operators' arguments, as JSON
  std::uint32_t module = 0;  // the one that runs now
  std::uint32_t line = 0;  // of what the step's thread gives birth to now
  std::vector<RecordedTick> ticks;
  std::vector<RecordedStorage> storages;
  std::vector<RecordedUse> uses;
  std::vector<RecordedSpan> spans;

  // An empty one with the same names, in the same module.
  Recording modules() const {
    Recording empty;
    empty.names = names;
    empty.numbers_ = numbers_;
    empty.module = module;
    return empty;
  }

  // Times are absolute here. What began before the step is cut off at its beginning.
  void add(RecordedSpan span) {
    for (std::int64_t* ns : {&span.asked_ns, &span.begin_ns, &span.end_ns}) *ns = std::max<std::int64_t>(*ns - began_ns, 0);
    if (spans.size() < spans.capacity()) spans.push_back(span);
  }
  void stalled(std::uint32_t storage, std::uint32_t tick, Stall cause, std::int64_t since, std::int64_t now) {
    auto lane = static_cast<Lane>(static_cast<int>(Lane::StallRoom) + static_cast<int>(cause));
    add({storage, tick, lane, kFast, kFast, since, since, now});
  }

  std::uint32_t name(const char* text) { return number(names, numbers_, text); }
  std::uint32_t call(const char* text) { return number(calls, call_numbers_, text); }
  bool is_full() const { return ticks.size() >= kMostTicks || text_bytes_ >= kMostText; }

 private:
  using Numbers = std::unordered_map<std::string, std::uint32_t>;
  std::uint32_t number(std::vector<std::string>& texts, Numbers& numbers, const char* text) {
    auto [entry, added] = numbers.try_emplace(text, static_cast<std::uint32_t>(texts.size()));
    if (added) text_bytes_ += texts.emplace_back(text).size();
    return entry->second;
  }

  Numbers numbers_{{"", 0}}, call_numbers_{{"", 0}};
  std::size_t text_bytes_ = 0;
};

}  // namespace ebbtide
