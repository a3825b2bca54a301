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
  std::uint64_t live = 0, resident = 0, draining = 0, reading = 0, leaving = 0;
  unsigned busy = 0;
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    require(b.state != State::Dead, "a live block is dead");
    require(region(b).owner(b.address) == id && region(b).owner(b.address + b.held - 1) == id, "the map names another owner");
    require(b.nbytes <= b.held && b.held == b.shape.bytes() && b.place.count == b.shape.pages, "a block holds less than it stores");
    live += b.nbytes;
    if (b.state == State::Dirty || b.state == State::Clean || b.state == State::Writing) resident += b.held;
    if (b.state == State::Reading) reading += b.held;
    if (b.state == State::Writing && !b.stays) leaving += b.held;
    require((b.state == State::Writing || b.state == State::Reading) <= b.transfer.busy(), "a move without a transfer");
    require(!(b.state == State::Absent && b.transfer.busy()), "an absent block is in transfer");
    require(b.state == State::Absent || b.state == State::Reading || b.read_only == (b.state != State::Dirty),
            "a dirty block is read-only, or a clean one is not");
  }
  for (BlockId id = 0; id < blocks_.created(); ++id) {
    const Block& b = blocks_[id];
    if (b.transfer.busy()) ++busy;
    if (b.state != State::Dead) continue;
    if (b.released && b.transfer.busy()) draining += b.held;
  }
  require(live == live_, "live bytes");
  require(resident == resident_, "resident bytes");
  require(leaving == leaving_, "leaving bytes");
  require(busy == busy_transfers_, "busy transfers");
  // I1
  require(held_ == resident + reading + draining + warm_bytes(), "held bytes");
}

}  // namespace ebbtide
