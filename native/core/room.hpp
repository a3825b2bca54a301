// Finding room in fast memory: pages that nobody holds, pages that the dead left behind, pages of storages that can wait.
// Under the arena's mutex, which is unlocked while somebody waits: in claim(), make_room(), ensure_usable() and ensure_fast().
#pragma once

#include <cstdint>

#include "areas.hpp"
#include "block_table.hpp"
#include "budget.hpp"
#include "fast_memory.hpp"
#include "mover.hpp"
#include "moves.hpp"
#include "stall_clock.hpp"
#include "victims.hpp"
#include "watchdog.hpp"

namespace ebbtide {

enum class Claim : std::uint8_t { Granted, TiersTakeNoMore, MachineHasNoMore };

class Room {
 public:
  Room(BlockTable& blocks, FastMemory& memory, Areas& areas, Tiers& tiers, Budget& budget, Mover& mover, Moves& moves,
       Victims& victims, const OperatorStacks& stacks, const Stretch& stretch, StallClock& stalls, std::int64_t watchdog_ns,
       bool (*unpins_come)(), void (*ask_to_make)(const void*, bool));

  bool try_claim(Shape shape);  // grants the pages of a shape; the caller takes them at once
  // Starts what brings a block back, if there is room for it now: false, if not.
  bool try_fetch(BlockId id, bool urgent = false);
  // What was just granted is nobody's again.
  void withdraw(Shape shape) { budget_.account(-static_cast<std::int64_t>(memory_.fresh_bytes(shape))); }
  Claim claim(Lock& lock, Shape shape);  // waits
  int ensure_usable(Lock& lock,
                    BlockId id);  // waits; 0 when operators may use it (or it died meanwhile), else the errno of the read
  void ensure_free(Lock& lock, BlockId id);   // of recipes that read it: waits until they are made, or given up
  void ensure_fast(Lock& lock, BlockId id);   // of what is used in place: waits until it is in fast memory, or cannot come

  void trim();  // back under the limit, as far as that is possible without waiting
  void evict_ahead();  // of need, as the policy has it
  void after_use(BlockId id);  // an operator that used it has ended: the policy may have it leave, or come
  // Called where areas may have become more, and not between a claim and the taking of its pages.
  void spare_areas();

  void set_watchdog(std::int64_t ns) { watchdog_.set(ns); }
  void end_step();
  bool short_lately() const { return pressure_; }  // an allocation or fetch had to wait for room
  unsigned threads_waiting() const { return waiting_; }  // prefetches stand back for them
  void read(Counters& c) const;
  void reset_needs() { stuck_at_ = 0; }
  void reset_trouble();

 private:
  enum class Attempt { Progress, Stuck, TimedOut, TiersFailed };

  bool try_claim_new(std::uint64_t bytes);  // likewise, none of them cached
  Attempt make_room(Lock& lock, Shape shape, std::int64_t since);  // when its caller began to wait
  bool is_standstill(std::uint64_t changes);
  void wait_for_maker(Lock& lock, const Block& b, bool to_write, bool again);
  void claim_over_budget(Shape shape, Attempt why);
  void release_cached(std::uint64_t bytes, const Shape& shape = {});
  void clear_stretch(Region& r);
  bool wait_for_areas(Lock& lock, std::int64_t since);
  bool waited_too_long(std::int64_t since);

  BlockTable& blocks_;
  FastMemory& memory_;
  Areas& areas_;
  Tiers& tiers_;
  Budget& budget_;
  Mover& mover_;
  Moves& moves_;
  Victims& victims_;
  const OperatorStacks& stacks_;
  const Stretch& stretch_;
  StallClock& stalls_;
  Watchdog watchdog_;
  bool (*unpins_come_)();  // whether others will let go of external pins; null: they will not
  void (*ask_to_make_)(const void*,
                       bool);  // asks the maker for what lies there, or is made of it [Note: recipes]; a signal may have come
  bool pages_migrate_;  // to and from tiers that are used in place

  bool pressure_ = false;
  bool waited_in_step_ = false;
  unsigned waiting_ = 0;
  std::ptrdiff_t blocked_ = 0;  // threads in operators that have waited for room since this many changes of the mover
  std::uint64_t blocked_since_ = 0;
  std::ptrdiff_t for_maker_ = 0, for_maker_outside_ = 0;  // threads that wait for the maker, in operators and outside
  std::uint64_t failures_at_trim_ = 0;
  std::int64_t trims_from_ns_ = 0;
  Slot cleared_up_to_[2] = {0, 0};  // huge pages, small ones
  std::uint64_t stuck_at_ = 0;
  bool over_budget_ = false;
  std::uint64_t refused_ = 0;  // claims, since the machine has no more
  char trouble_[256] = "";  // the first time over budget, in words; a buffer, since the fault handler may write it
};

}  // namespace ebbtide
