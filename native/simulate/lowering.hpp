// Stays of whole storages, and the commands that make them so: ir/plan.py and ir/schedule.py in columns.
#pragma once

#include <cstdint>
#include <vector>

#include "machine.hpp"
#include "pieces.hpp"

namespace ebbtide::simulate {

// Columns of one length; those of a storage follow each other. `tier` is a rank.
struct Stays {
  std::vector<std::int64_t> storage, tier, start, valid_from, stop;
};

// By storage: its life, and the piece that is all of it.
struct Storages {
  std::vector<std::int64_t> birth, death;
  std::vector<std::uint8_t> persistent;
  std::vector<Piece> piece;
};

// The schedule of a plan in which all other storages are in fast memory from birth to death. ir/schedule.py's `lower` is its
// oracle. Throws std::invalid_argument for columns that do not belong together.
Commands lower(const Stays& stays, const Storages& storages, const Pieces& pieces, const Machine& machine);

}  // namespace ebbtide::simulate
