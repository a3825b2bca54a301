// A plan's stays, lowered to commands with what follows them. The only place where a plan becomes a schedule: ir/schedule.py
// asks for the arena and for people, simulate_stays for the simulator.
#pragma once

#include <cstdint>
#include <vector>

#include "../core/command.hpp"

namespace ebbtide::simulate {

// Columns of one length; those of a storage follow each other. `tier` is a rank.
struct Stays {
  std::vector<std::int64_t> storage, tier, start, valid_from, stop;
};

// By storage: its life, and from use_starts on the ticks of its uses, ascending. Ticks are those of the step of its birth.
struct Storages {
  std::int64_t n_ticks;
  std::vector<std::int64_t> birth, death;
  std::vector<std::uint8_t> persistent;
  std::vector<std::size_t> use_starts;  // one more than there are storages
  std::vector<std::int64_t> use_ticks;
};

// By target, the ranks of the tiers with a link to it, the fastest first.
using Ways = std::vector<std::vector<Rank>>;

// The storage is valid on the tier when it is born, or at tick 0 if it is persistent.
struct Begin {
  std::uint32_t storage;
  Rank tier;
};

// In the order in which they are carried out. `begins` has every storage that does not begin on the first tier alone, with all
// tiers that it is valid on then.
struct Commands {
  std::vector<Command> rows;
  std::vector<Begin> begins;
};

// The schedule of a plan in which all other storages are in fast memory from birth to death. A stay's beginning becomes a copy and
// its end a drop. What the program itself does needs no command: birth, death, and a stay that goes on on the same tier. Callers
// MUST have checked the plan: a stay without a source is passed over. Throws std::invalid_argument for columns that do not belong
// together.
Commands lower(const Stays& stays, const Storages& storages, const Ways& ways);

}  // namespace ebbtide::simulate
