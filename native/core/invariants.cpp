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
    require(!b.blank || b.state == State::Absent, "a block without contents has pages");
    require(memory_.owner(b.address) == id && memory_.owner(b.address + b.paged_bytes - 1) == id, "the map names another owner");
    require(b.nbytes <= b.paged_bytes && b.paged_bytes == b.shape.bytes() && b.place.count == b.shape.pages,
            "a block holds less than it stores");
    live += b.nbytes;
    if (b.is_fast()) resident += b.paged_bytes;
    if (b.has_pages() && b.home != kFast) in_place += b.paged_bytes;
    if (b.migrates() && b.transfer.target == kFast) reading += b.paged_bytes;
    require(b.home == kFast || b.has_pages(), "a block without pages is in a tier that is used in place");
    require(!b.migrates() || (b.transfer.source == b.home && b.has_pages()), "pages move from where they are not");
    if (b.state == State::Reading) reading += b.paged_bytes;
    if (b.is_evicting()) evicting += b.paged_bytes;
    require((b.state == State::Writing || b.state == State::Reading) <= b.transfer.busy(), "a move without a transfer");
    bool to_or_from_fast = b.transfer.busy() && (b.transfer.source == kFast || b.transfer.target == kFast);
    require(!(b.state == State::Absent && to_or_from_fast), "an absent block comes or goes");
    bool elsewhere = b.state == State::Clean || b.state == State::Absent || b.state == State::Reading;
    require((b.valid != 0) == (elsewhere && !b.blank) && b.valid >> (tiers_.last() + 1) == 0,
            "a block's state and its tiers differ");
    require(b.state == State::Absent || b.state == State::Reading || b.read_only == (b.state != State::Dirty),
            "a dirty block is read-only, or a clean one is not");
  }
  for (BlockId id = 0; id < blocks_.created(); ++id) {
    const Block& b = blocks_[id];
    if (b.transfer.busy()) ++busy;
    if (b.state == State::Untouched) untouched += b.nbytes;
    if (b.state != State::Dead) continue;
    if (!b.transfer.busy()) continue;
    if (b.drains_with_pages && b.home != kFast) in_place += b.paged_bytes;
    if ((b.drains_with_pages && b.home == kFast) || b.transfer.target == kFast) draining += b.paged_bytes;
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
