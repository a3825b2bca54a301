// Where the pieces of a step are during a simulation: what they reserve on tiers, replicas and copies, and the verbs that change
// that.
//
// Bit r of valid, reserved and evicting stands for the tier of rank r: contents there; bytes reserved there; bytes there that
// are freed once the copies from there are done.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "links.hpp"
#include "machine.hpp"
#include "pieces.hpp"
#include "record.hpp"

#include "order.hpp"

namespace ebbtide::simulate {

using Ranks = std::uint64_t;

inline Ranks bit(unsigned rank) { return Ranks{1} << rank; }

using Held = std::vector<std::int64_t>;  // bytes by tier

class TierState : private Receiver {
 public:
  TierState(const Pieces& pieces, const Machine& machine, bool uses_in_place);
  TierState(const TierState&) = delete;
  TierState& operator=(const TierState&) = delete;

  const Record& record() const { return record_; }

  // Counts all bytes anew, from pieces and copies. Throws std::logic_error where a figure is another.
  void check_state() const;

 protected:
  std::int64_t free(unsigned rank) const { return machine_.tiers[rank].capacity - record_.used[rank]; }
  bool fits(unsigned rank, std::int64_t nbytes) const;  // in what no copy in a queue will take
  // What a piece takes on a tier where it may lie.
  std::int64_t room(Piece piece, unsigned rank) const {
    return machine_.tiers[rank].packs ? pieces_.packed_bytes[piece] : pieces_.paged_bytes[piece];
  }
  bool may_lie(Piece piece, unsigned rank) const { return !machine_.tiers[rank].packs || pieces_.packed_bytes[piece] >= 0; }
  bool has_room(Piece piece, unsigned rank) const { return may_lie(piece, rank) && fits(rank, room(piece, rank)); }
  bool evictable(Piece piece) const;                    // from the first tier, now
  bool evict(Piece piece);                              // whether it could leave
  bool reads(Piece piece, unsigned rank) const;         // whether a copy from there is queued or under way

  void note_change(Piece piece);  // where it is valid, or when it is used
  void take(Piece piece, unsigned rank);
  void drop(Piece piece, unsigned rank);
  void cancel_eviction(Piece piece, unsigned rank);
  std::vector<Piece> missing(std::size_t tick) const;
  void place_unborn();
  void die(Piece piece);
  void grow_old(Piece piece);
  void overwrite(Piece piece, unsigned rank);
  void put(Piece piece, unsigned source, unsigned target, std::int64_t due, bool demanded = false);
  void cancel(Copy& copy);
  std::optional<unsigned> source_of(Piece piece) const;
  std::optional<unsigned> target_of(Piece piece, unsigned source) const;
  void demand(Piece piece);
  bool keep(Piece piece);

  const Pieces& pieces_;
  const Machine machine_;
  const std::size_t n_ticks_;
  const unsigned n_tiers_;
  std::array<Ranks, 4> usable_;  // for each mode of access, where it may happen
  std::vector<Ranks> valid_, reserved_, evicting_;
  std::vector<std::int64_t> last_use_, next_use_;  // ticks since the first step began
  std::vector<std::uint8_t> transient_;            // what lost its room on the first tier
  std::vector<std::vector<Held>> elders_;          // what each of those before has reserved, the oldest first
  std::vector<std::uint8_t> had_elders_;
  std::vector<Piece> with_elders_;  // pieces that ever had some, in that order
  std::vector<std::vector<Copy*>> copies_;
  std::vector<std::int64_t> due_back_;  // of the FETCH that came when a piece was half gone
  std::vector<std::int64_t> promised_;  // bytes that copies in queues will reserve on each tier
  std::int64_t evicting_bytes_ = 0;     // on the first tier, that copies under way will free
  std::optional<Order> order_;          // who leaves first, once that has been asked
  std::deque<Piece> unborn_;
  std::vector<std::uint8_t> pinned_;  // the mode in which the tick at hand uses a piece or gives birth to it
  double now_ = 0;
  std::int64_t at_ = 0;  // ticks since the first step began
  Record record_;
  Links links_;
  std::vector<int> hop_;  // from each tier, where a copy on its way to the first tier goes next; -1: it cannot

 private:
  bool admits(Copy& copy, std::int64_t nbytes) override;
  void arrived(Copy& copy, std::int64_t nbytes) override;
  void ended(const Copy& copy, std::size_t link) override;
  void find_hops();
  bool is_there(Piece piece, unsigned rank) const;
  bool is_held(Piece piece, unsigned rank) const;
  void release(unsigned rank, std::int64_t nbytes);
  void mark_evicting(Piece piece, unsigned rank);
  void free_if_done(Piece piece, unsigned rank, std::int64_t freed = 0);
  void cancel_all(Piece piece);
  Held give_up(Piece piece);
  void forget(Copy& copy);
};

}  // namespace ebbtide::simulate
