// Whom to evict, and when: pure functions of what has been seen. They touch no memory but their arguments and make no
// system call. The arena asks them, and so does the simulator (ebbtide._planning), so that one code decides in both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "types.hpp"

namespace ebbtide {

// How much a storage should be spared. Callers never offer what an operator holds right now.
enum class Shield : std::uint8_t {
  None,     // nobody is using it
  ThisTick,  // touched since the current operator began
  Outer,    // an operand of an operator that is waiting for an inner one
};

// What age is: the time since the last use, or, for whoever knows it, until the next.
enum class Age : std::uint8_t { SinceUse, UntilUse };

// What is evicted as soon as its operation has ended, whether or not room is short. A transient storage found no
// room at its birth, or lost it since: it is fetched for its operations only.
enum class EvictAfterUse : std::uint8_t { Nothing, Transients, Everything };

// A policy is these settings. Shares are of the budget.
struct Policy {
  std::string_view name;
  Age age = Age::SinceUse;
  bool weighs_cost = false;       // of two equally old, the clean one is evicted first: it needs no write
  EvictAfterUse evict_after_use = EvictAfterUse::Nothing;
  std::uint32_t sees_every = 1;   // one access in so many counts as a use
  double batch = 0;               // where room is short, so much more is made
  double low = 0, high = 0;       // when less than low is free, evictions begin ahead of need until high is
  std::uint64_t most_ahead = ~std::uint64_t{0};  // bytes that are kept free at most
  bool ahead_of_pressure = false;  // also before room has ever been short
  // Where a slower tier is used in place: what is used there comes when there is room; where there is none, births go there.
  bool promotes = true;
  bool born_in_place = false;
};

// The one that runs without another.
inline constexpr Policy kDemand{.name = "demand",
                                .weighs_cost = true,
                                .batch = 1.0 / 64,
                                .low = 1.0 / 16,
                                .high = 1.0 / 16,
                                .most_ahead = std::uint64_t{256} << 20};

inline constexpr Policy kPolicies[] = {
    kDemand,
    {.name = "lru"},
    {.name = "lru-next-use", .age = Age::UntilUse},                  // Belady, 1966
    {.name = "first-touch",
     .evict_after_use = EvictAfterUse::Transients,
     .promotes = false,
     .born_in_place = true},  // AutoTM's NUMA baseline
    {.name = "reactive",
     .sees_every = 4,
     .low = 0.02,
     .high = 0.05,
     .ahead_of_pressure = true,
     .born_in_place = true},  // after TPP
    {.name = "evict-all", .evict_after_use = EvictAfterUse::Everything},
};

// nullptr: there is none of this name.
const Policy* find_policy(std::string_view name);

struct Candidate {
  BlockId id;
  Shield shield;
  bool clean;
  std::uint64_t bytes;
  std::uint64_t age;  // as the policy has it; larger is evicted earlier; in one unit for all candidates
  bool transient = false;
};

// The price of moving, in any one unit per byte.
struct MoveCosts {
  double write = 1.0;
  double read = 1.0;
};

// Reorders `candidates` so that the first n cover `needed` bytes with as little regret as is known; returns n
// (all of them when even that is too little). The next `spare` stand behind them in the order in which they would be evicted.
// By shield, transients first where the policy has any, by age (over the cost
// of the round trip where the policy weighs it), by id.
std::size_t choose_victims(std::span<Candidate> candidates, std::uint64_t needed, const Policy& policy, MoveCosts costs = {},
                           std::size_t spare = 0);

// Looking at all of many storages for every victim would take longer than the move. So one look at n of them is good for
// one victim in so many more; what was used meanwhile, or may not be evicted, is passed over. Few are looked at every time.
inline constexpr std::size_t kLooksPerVictim = 1024;

// Whether it is evicted when its operation has ended.
bool evicts_after_use(const Policy& policy, bool transient);

// How much to evict beyond what is needed at once, and ahead of need when `free` bytes of the budget are or will be.
std::uint64_t batch_bytes(const Policy& policy, std::uint64_t budget);
std::uint64_t ahead_bytes(const Policy& policy, std::uint64_t budget, std::uint64_t free);

}  // namespace ebbtide
