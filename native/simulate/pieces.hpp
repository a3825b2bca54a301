// What does not change during a simulation: a step as pieces, and what happens to them tick by tick. A piece is a storage, or all
// scratch that lives in one tick alone (simulator/step_columns.py makes these columns).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "../core/types.hpp"

namespace ebbtide::simulate {

using Piece = BlockId;

inline constexpr unsigned kRead = 1, kWrite = 2;  // bits of a mode of access

// The rows of all ticks, one tick after another.
template <typename Row>
struct ByTick {
  std::vector<std::size_t> starts;  // one more than there are ticks
  std::vector<Row> rows;

  std::span<const Row> operator[](std::size_t tick) const {
    return std::span(rows).subspan(starts[tick], starts[tick + 1] - starts[tick]);
  }
};

struct Use {
  Piece piece;
  unsigned mode;
  std::int64_t until;  // ticks until its next use
};

struct Pieces {
  // By piece. The last four are those of its storage. What may not lie packed has -1.
  std::vector<std::int64_t> nbytes, paged_bytes, packed_bytes, first_use;
  std::vector<std::uint8_t> moves;
  std::vector<std::uint8_t> persistent, scratch;
  std::vector<std::int64_t> birth;
  std::vector<std::int64_t> generations;  // of those that were born in steps before, so many live when a step begins

  std::vector<std::int64_t> storage;  // the first, of scratch that is one piece
  std::vector<Piece> of;  // by storage, the piece that is all of it

  // By tick.
  ByTick<Use> uses;
  ByTick<Piece> births, deaths;
  std::vector<std::int64_t> n_used, reads, writes;
  std::vector<double> times;

  std::size_t size() const { return nbytes.size(); }
  std::size_t n_ticks() const { return times.size(); }
};

}  // namespace ebbtide::simulate
