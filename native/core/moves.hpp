// What becomes of a block: its contents move between fast memory and the slower tiers. Under the arena's mutex, but for
// carry().
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "areas.hpp"
#include "block_table.hpp"
#include "budget.hpp"
#include "fast_memory.hpp"
#include "mover.hpp"
#include "tiers.hpp"

namespace ebbtide {

class Moves final : public Cargo {
 public:
  Moves(BlockTable& blocks, FastMemory& memory, const Areas& areas, Tiers& tiers, Budget& budget, Mover& mover, Tape& tape,
        const Hook& hook, void (*on_arrival)(void*), void* listener);

  // To a tier slower than the memory that has its pages: the fastest, from rank `target` on, that has space. If that is used
  // in place, its pages move there. Else what is clean leaves at once, since a tier that is no slower has its contents; and
  // what is dirty is read-only from now on, and leaves when it is written, unless somebody writes to it first. False: it stays.
  bool start_evict(BlockId id, Then then = Then::Drop, Rank target = 1);
  void evict_when_written(BlockId id);  // its write goes on, and it leaves then
  void start_read(BlockId id, bool urgent = false);  // the pages have been claimed
  void give_pages(BlockId id);  // to one that is blank: likewise; it is Dirty then
  // To memory in which it is used in place, where space is reserved, or to fast memory, where its room is claimed.
  void start_migration(BlockId id, Rank target, bool urgent = false);
  // Whether nothing keeps its pages from moving: no other move, no forked child that shares them.
  bool may_migrate(const Block& b) const { return b.has_pages() && !b.transfer.busy() && b.heirs == Heirs::None && !frozen_; }
  // From one slower tier to another, where the first has the contents. False: the second has no space, or is used in place,
  // or another move is under way.
  bool start_copy(BlockId id, Rank source, Rank target, Then then);
  void give_up_copy(BlockId id) { abandon(id); }  // somebody waits for its contents
  void drop(BlockId id, Rank rank);  // the contents there, unless there are none elsewhere
  void make_dirty(BlockId id);       // somebody writes
  // [Note: recipes]. False: it has no pages of its own in fast memory, or moves.
  bool keep_recipe(BlockId id, std::uint64_t recipe);
  void forget_recipe(BlockId id);  // of what is not Unmade
  void guard(BlockId id);
  void unguard(BlockId id);
  // The pages of one that is Dirty and lies still become those of one that is Unmade and alike. The first is Blank then.
  void hand_over(BlockId from, BlockId to);
  // A new block's pages, which are vacant or fast, are those of this tier, which has space for them. False: they are not.
  bool settle(BlockId id, Rank home);
  void free(BlockId id);  // it is dead or was never used; its place is given back when nothing of it is under way any more

  std::uint64_t evicting() const { return evicting_; }  // bytes that leave when they are written
  std::uint64_t fetched() const { return fetched_; }
  std::uint64_t cancelled() const { return cancelled_; }
  std::uint64_t made_anew() const { return made_anew_; }  // bytes
  std::uint64_t unmade() const { return unmade_.load(std::memory_order_relaxed); }  // blocks; of these two, without the mutex too

  // In a forked child nothing moves.
  void freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }
  // What slower tiers have of it will be written over. MUST come before [Note: children].
  void contents_change(BlockId id);
  bool have_changed(BlockId id) const { return versions_[id].load() != blocks_[id].version; }  // since the fork

  int carry(const Block& b, std::uint32_t chunk, bool pages, void* buffer) override;
  void arrived(BlockId id) override;

 private:
  void enqueue(BlockId id, Rank target, Then then);
  void take_pages(BlockId id, State after = State::Absent);
  void abandon(BlockId id);
  void cancel(BlockId id);
  void forget(Block& b, RankSet ranks);
  void written(BlockId id, const Transfer& t);
  void read(BlockId id, const Transfer& t);
  void free_drained(BlockId id);
  void migrated(BlockId id, const Transfer& t);
  void give_up_pages(Block& b);
  void give_back(const Block& b, Rank home);

  BlockTable& blocks_;
  FastMemory& memory_;
  const Areas& areas_;
  Tiers& tiers_;
  Budget& budget_;
  Mover& mover_;
  Tape& tape_;
  const Hook& hook_;
  void (*const on_arrival_)(void*);  // a transfer has ended
  void* const listener_;
  Reservation version_memory_;
  std::span<std::atomic<std::uint32_t>> versions_;  // by block; forked children see them too
  std::uint64_t evicting_ = 0;
  std::uint64_t fetched_ = 0;
  std::uint64_t cancelled_ = 0;
  std::uint64_t made_anew_ = 0;
  std::atomic<std::uint64_t> unmade_ = 0;
  bool frozen_ = false;
};

}  // namespace ebbtide
