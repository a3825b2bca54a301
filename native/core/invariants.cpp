// [Note: invariants], checked. Slow: for tests.
#include <stdexcept>

#include "arena.hpp"

namespace ebbtide {

namespace {
void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("invariant broken: ") + what);
}
}  // namespace

void Arena::check_invariants() {
  Lock lock(mutex_);
  std::uint64_t live = 0, resident = 0, in_place = 0, draining = 0, reading = 0, evicting = 0, untouched = 0;
  unsigned busy = 0;
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    require(b.state != State::Dead && b.state != State::Untouched, "a live block is dead, or was never used");
    require(memory_.owner(b.address) == id && memory_.owner(b.address + b.paged_bytes - 1) == id, "the map names another owner");
    live += b.nbytes;
    if (b.is_fast()) resident += b.paged_bytes;
    if (b.has_pages() && b.home != kFast) in_place += b.paged_bytes;
    if (b.migrates() && b.transfer.target == kFast) reading += b.paged_bytes;
    if (b.state == State::Reading) reading += b.paged_bytes;
    if (b.is_evicting()) evicting += b.paged_bytes;
    require(b.valid >> (tiers_.last() + 1) == 0, "a block is in a tier that is not there");
    require(!b.has_pages() || memory_.region(b.shape).is_read_only(b.place) != b.can_be_written(),
            "a dirty block is read-only, or a clean one is not");
  }
  for (BlockId id = 0; id < blocks_.created(); ++id) {
    const Block& b = blocks_[id];
    if (b.state != State::Dead || b.transfer.busy()) {
      const char* what = what_is_wrong(b);
      require(what == nullptr, what);
    }
    if (b.transfer.busy()) ++busy;
    if (b.state == State::Untouched) untouched += b.nbytes;
    if (b.state != State::Dead) continue;
    if (!b.transfer.busy()) continue;
    bool has_pages = b.remains != Remains::NoPages;
    if (has_pages && b.home != kFast) in_place += b.paged_bytes;
    if ((has_pages && b.home == kFast) || b.transfer.target == kFast) draining += b.paged_bytes;
  }
  if (mover_.changes() % 64 == 0) {  // it looks at every place
    require(memory_.huge().count_areas() == memory_.huge().areas() && memory_.small().count_areas() == memory_.small().areas(),
            "memory areas");
  }
  require(live == budget_.live(), "live bytes");
  require(untouched == untouched_, "bytes that nobody has used");
  require(resident == budget_.resident(), "resident bytes");
  require(in_place == budget_.in_place(), "bytes in tiers that are used in place");
  require(evicting == moves_.evicting(), "evicting bytes");
  require(busy == mover_.busy(), "busy transfers");
  // I1
  require(budget_.reserved() == resident + reading + draining + memory_.cached_bytes(), "reserved bytes");
}

}  // namespace ebbtide
