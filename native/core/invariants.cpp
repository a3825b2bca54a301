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
  std::uint64_t live = 0, resident = 0, draining = 0, reading = 0, evicting = 0;
  unsigned busy = 0;
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    require(b.state != State::Dead, "a live block is dead");
    require(region(b).owner(b.address) == id && region(b).owner(b.address + b.paged_bytes - 1) == id,
            "the map names another owner");
    require(b.nbytes <= b.paged_bytes && b.paged_bytes == b.shape.bytes() && b.place.count == b.shape.pages,
            "a block holds less than it stores");
    live += b.nbytes;
    if (b.state == State::Dirty || b.state == State::Clean || b.state == State::Writing) resident += b.paged_bytes;
    if (b.state == State::Reading) reading += b.paged_bytes;
    if (b.state == State::Writing && !b.write_back) evicting += b.paged_bytes;
    require((b.state == State::Writing || b.state == State::Reading) <= b.transfer.busy(), "a move without a transfer");
    require(!(b.state == State::Absent && b.transfer.busy()), "an absent block is in transfer");
    require(b.state == State::Absent || b.state == State::Reading || b.read_only == (b.state != State::Dirty),
            "a dirty block is read-only, or a clean one is not");
  }
  for (BlockId id = 0; id < blocks_.created(); ++id) {
    const Block& b = blocks_[id];
    if (b.transfer.busy()) ++busy;
    if (b.state != State::Dead) continue;
    if (b.released && b.transfer.busy()) draining += b.paged_bytes;
  }
  if (changes_ % 64 == 0) {  // it looks at every place
    require(huge_.count_areas() == huge_.areas() && small_.count_areas() == small_.areas(), "memory areas");
  }
  require(live == live_, "live bytes");
  require(resident == resident_, "resident bytes");
  require(evicting == evicting_, "evicting bytes");
  require(busy == busy_transfers_, "busy transfers");
  // I1
  require(reserved_ == resident + reading + draining + cached_bytes(), "reserved bytes");
}

}  // namespace ebbtide
