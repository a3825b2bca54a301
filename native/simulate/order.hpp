// Who is evicted from a tier of the simulator first, as the decider has it. The decider looks at all candidates at every
// question; a simulation asks tens of thousands of times, so here they wait in line: within a class (clean or not,
// transient or not) their order does not change as time goes by, so the best of all is the best of the heads of the lines.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "../core/decider.hpp"

namespace ebbtide {

// By piece, and owned by the simulator, which goes on changing them. Bit r stands for the tier of rank r.
struct Columns {
  std::span<const std::uint64_t> valid;     // contents are there
  std::span<const std::uint64_t> evicting;   // and are about to go
  std::span<const std::uint64_t> nbytes;    // the room that it takes
  std::span<const std::int64_t> last_use;   // ticks
  std::span<const std::int64_t> next_use;
  std::span<const std::uint8_t> moves;      // whether it may move at all
  std::span<const std::uint8_t> transient;
};

// A policy of somebody else's, which says of each candidate how soon it should leave: the highest leaves first.
using Score = std::function<std::vector<double>(const std::vector<Candidate>&)>;

class Order {
 public:
  // Throws std::invalid_argument when the columns differ in length. A score, if there is one, decides on the first tier.
  Order(const Policy& policy, const Columns& columns, unsigned n_tiers, Score score = {});

  // Callers MUST say so when a column changed for a piece, but for what is evicted or dies.
  void changed(BlockId piece);

  // Those on the tier that cover so many bytes (all that are evictable when even that is too little), in order.
  std::vector<BlockId> victims(unsigned tier, std::uint64_t needed, std::int64_t now,
                               const std::function<bool(BlockId)>& evictable);

 private:
  struct Entry {
    std::int64_t key;  // smaller is evicted first
    BlockId piece;
    auto operator<=>(const Entry&) const = default;
  };
  using Line = std::vector<Entry>;  // a heap; what has become stale is dropped when it gets to the head
  struct Tier {
    bool asked = false;  // most simulations of plans never ask, and then nobody stands in line
    std::array<Line, 4> lines;
  };

  bool is_there(BlockId piece, unsigned tier) const;
  bool is_clean(BlockId piece, unsigned tier) const;
  std::size_t line_of(BlockId piece, unsigned tier) const;
  std::int64_t key(BlockId piece) const;
  Candidate candidate(BlockId piece, unsigned tier, std::int64_t now) const;
  void join(BlockId piece, unsigned tier);
  void fill(unsigned tier);
  std::vector<BlockId> highest(std::uint64_t needed, std::int64_t now, const std::function<bool(BlockId)>& evictable) const;
  bool has_head(unsigned tier, std::size_t line, const std::function<bool(BlockId)>& evictable, Line& passed);

  const Policy policy_;
  const Score score_;
  const Columns columns_;
  std::vector<Tier> tiers_;
};

}  // namespace ebbtide
