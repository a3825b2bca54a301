// fork: the child gets what it needs and nothing that would be copied in vain.
//
// Training memory is not inherited (a child that merely exists would make the parent's every write copy a page, and
// split its huge pages). Storages that are neither parameter, gradient nor optimizer state, and not of a running step,
// are: a data set that a worker reads must be there. They are fetched first, and training memory makes way for them
// as long as they fit the budget. The child has no I/O threads and no budget; its new storages come from the previous
// allocator.
#include <new>

#include "arena.hpp"

namespace ebbtide {

namespace {
bool is_for_children(const Block& b, bool training_began) {
  return !b.classified && (b.kind == Kind::Other || !training_began);
}
}  // namespace

void Arena::inherit(bool inherited) {
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    if (!is_for_children(b, step_ > 1) || b.state == State::Absent || b.state == State::Reading) continue;
    set_inherited(b.address, b.held, inherited);
    b.inherited = true;
  }
}

void Arena::before_fork() {
  Lock lock(mutex_);
  std::uint64_t wanted = 0;
  for (BlockId id : blocks_.live()) wanted += is_for_children(blocks_[id], step_ > 1) ? blocks_[id].held : 0;
  for (std::size_t i = 0; i < blocks_.live().size();) {  // by index: waiting lets the list change
    BlockId id = blocks_.live()[i];
    Block& b = blocks_[id];
    bool absent = is_for_children(b, step_ > 1) && b.state == State::Absent;
    if (absent && try_claim(b.shape)) {
      b.last_use = ++stamp_;  // so that what makes way for the next one is training memory
      start_read(id);
    } else if (absent && wanted <= limit_ && make_room(lock, b.shape) == Outcome::Progress) {
      continue;  // the same one again: there may be room now
    }
    ++i;
  }
  while (busy_transfers_ > 0) wait(lock, false);
  quiet_ = true;
  inherit(true);
  lock.release();  // held across the fork
}

void Arena::after_fork_in_parent() {
  inherit(false);
  quiet_ = false;
  work_.notify_all();
  mutex_.unlock();
}

void Arena::after_fork_in_child() {
  new (&mutex_) std::mutex;
  new (&work_) std::condition_variable;
  new (&governor_) std::condition_variable;
  new (&changed_) std::condition_variable;
  in_child_ = true;
}

// The child's copy is private: make it writable and go on. What was not inherited has no pages here.
bool Arena::on_fault_in_child(const void* address) {
  BlockId id = find(address);
  if (id != kNoBlock && blocks_[id].inherited && blocks_[id].read_only) {
    Block& b = blocks_[id];
    b.read_only = false;
    return protect(b.address, b.held, PROT_READ | PROT_WRITE);
  }
  say("a forked child touched training memory of its parent, which it does not inherit: pass it what it needs "
      "(a data set in NumPy or a file, a tensor created before training), or start it with the spawn method");
  return false;
}

}  // namespace ebbtide
