#include "moves.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ebbtide {

Moves::Moves(BlockTable& blocks, FastMemory& memory, const Areas& areas, Tiers& tiers, Budget& budget, Mover& mover, Tape& tape,
             const Hook& hook, void (*on_arrival)(void*), void* listener)
    : blocks_(blocks),
      memory_(memory),
      areas_(areas),
      tiers_(tiers),
      budget_(budget),
      mover_(mover),
      tape_(tape),
      hook_(hook),
      on_arrival_(on_arrival),
      listener_(listener),
      version_memory_(BlockTable::kCapacity * sizeof(std::uint32_t), kSmallPage, PROT_READ | PROT_WRITE, Reservation::kShared),
      versions_(reinterpret_cast<std::atomic<std::uint32_t>*>(version_memory_.begin()), BlockTable::kCapacity) {}

// --- out of fast memory

bool Moves::start_evict(BlockId id, Then then, Rank target) {
  Block& b = blocks_[id];
  check(b);
  bool clean = b.state == State::Clean;
  if (clean && b.valid == 0) {
    take_pages(id, State::Unmade);
    mover_.changed();
    return true;
  }
  Rank from = std::max<Rank>(target, b.home + 1u), to = clean ? fastest_with(b) : tiers_.last() + 1u;
  Rank rank = tiers_.reserve(memory_.extent(b), from, to, may_migrate(b), !clean);
  if (rank != kFast && tiers_.in_place(rank) != nullptr) {
    start_migration(id, rank);
    return true;
  }
  if (clean) {
    take_pages(id);
    mover_.changed();
    return true;
  }
  if (rank == kFast) return false;
  if (b.can_be_written() && !memory_.region(b).make_read_only(b.place)) {
    memory_.region(b).make_writable(b.place);  // it may have become read-only in part
    tiers_.release(memory_.extent(b), bit(rank));
    return false;
  }
  contents_change(id);
  b.state = State::Writing;
  enqueue(id, rank, then);
  return true;
}

void Moves::enqueue(BlockId id, Rank target, Then then) {
  const Block& b = blocks_[id];
  if (then != Then::Keep && b.home == kFast) evicting_ += b.paged_bytes;
  mover_.enqueue(id, b.home, target, then);
}

void Moves::evict_when_written(BlockId id) {
  Block& b = blocks_[id];
  if (b.transfer.then != Then::Keep) return;
  b.transfer.then = Then::Drop;
  if (b.home == kFast) evicting_ += b.paged_bytes;
}

// Takes the pages from a clean block.
void Moves::take_pages(BlockId id, State after) {
  Block& b = blocks_[id];
  hook_(Point::Evicting, id);
  bool was_fast = b.home == kFast;
  if (was_fast && !areas_.run_short() && b.heirs == Heirs::None && !b.scattered) {
    memory_.region(b).unmap(b.place);
  } else {
    give_up_pages(b);
  }
  if (std::uint64_t over = budget_.over(); over > 0) {
    budget_.account(-static_cast<std::int64_t>(memory_.release_cached(over, {})));
  }
  if (was_fast) budget_.account_resident(-static_cast<std::int64_t>(b.paged_bytes));
  if (was_fast && after == State::Absent) b.evicted += moved_bytes(b);
  if (after == State::Unmade) ++unmade_;
  b.state = after;
  b.heirs = Heirs::None;
}

void Moves::written(BlockId id, const Transfer& t) {
  Block& b = blocks_[id];
  if (t.then != Then::Keep && b.home == kFast) evicting_ -= b.paged_bytes;
  if (t.error == 0) {
    b.state = State::Clean;
    b.valid |= bit(t.target);
    b.written += moved_bytes(b);
    // It stays where an operator took it up meanwhile, say.
    if (t.then == Then::DropInUse || (t.then == Then::Drop && b.pins == 0)) take_pages(id);
    return;
  }
  Extent extent = memory_.extent(b);
  tiers_.release(extent, bit(t.target));
  if (t.target == tiers_.last()) tiers_.note_failure(t.target, t.error);
  Rank next = tiers_.reserve(extent, t.target + 1u, tiers_.last() + 1u, may_migrate(b));
  bool migrates = next != kFast && tiers_.in_place(next) != nullptr;
  if (next != kFast && !migrates) return enqueue(id, next, t.then);  // what one does not take, a slower one may
  b.state = State::Dirty;
  make_dirty(id);
  if (migrates) start_migration(id, next);
}

// --- somebody writes, or it dies

// Nobody wants its transfer any more. Chunks on their way finish in vain; the rest are not begun.
void Moves::abandon(BlockId id) {
  Transfer& t = blocks_[id].transfer;
  if (t.target != kFast) t.gives_back |= bit(t.target);
  RankSet back = t.gives_back;
  if (!mover_.cut_short(id)) return;
  tiers_.release(memory_.extent(blocks_[id]), back);
  mover_.changed();
}

// A write came first.
void Moves::cancel(BlockId id) {
  Block& b = blocks_[id];
  check(b);
  ++cancelled_;
  if (b.is_evicting()) evicting_ -= b.paged_bytes;
  b.state = State::Dirty;
  abandon(id);
  mover_.changed();
}

// What is being read out of a tier stays until that has ended.
void Moves::forget(Block& b, RankSet ranks) {
  b.valid &= static_cast<RankSet>(~ranks);
  if (b.transfer.busy() && b.transfer.source != kFast && (ranks & bit(b.transfer.source)) != 0) {
    b.transfer.gives_back |= bit(b.transfer.source);
    ranks &= static_cast<RankSet>(~bit(b.transfer.source));
  }
  if (ranks != 0) tiers_.release(memory_.extent(b), ranks);
}

void Moves::make_dirty(BlockId id) {
  Block& b = blocks_[id];
  check(b);
  if (b.state == State::Writing) cancel(id);
  b.recipe = 0;
  b.state = State::Dirty;
  if (b.can_be_written()) memory_.region(b).make_writable(b.place);
  if (b.valid == 0) return;
  forget(b, b.valid);
  if (b.transfer.busy() && b.transfer.brings != Brings::Pages) abandon(id);  // between two slower tiers
}

void Moves::contents_change(BlockId id) {
  if (!frozen_) blocks_[id].version = ++versions_[id];
}

void Moves::free(BlockId id) {
  Block& b = blocks_[id];
  check(b);
  contents_change(id);
  const bool has_pages = b.has_pages(), read_only = !b.can_be_written();
  if (b.state == State::Writing) cancel(id);
  if (b.is_fast()) budget_.account_resident(-static_cast<std::int64_t>(b.paged_bytes));
  if (b.leaves_fast()) evicting_ -= b.paged_bytes;
  if (b.state == State::Unmade) --unmade_;
  b.state = State::Dead;
  if (has_pages) b.remains = read_only ? Remains::ReadOnlyPages : Remains::WritablePages;
  if (b.valid != 0) forget(b, b.valid);
  if (b.transfer.busy() && b.transfer.target != kFast && b.transfer.brings != Brings::Pages) abandon(id);
  if (!b.transfer.busy()) free_drained(id);  // else its place is still being written or read [Note: invariants, I4]
}

// A dead block's pages are the next one's, unless they are not fast memory's, or a forked child may still see them:
// recycled, they would be copied.
void Moves::free_drained(BlockId id) {
  Block& b = blocks_[id];
  Region& r = memory_.region(b);
  bool pages = b.remains != Remains::NoPages;
  if (pages && (b.heirs != Heirs::None || b.scattered || b.home != kFast)) {
    give_up_pages(b);
    pages = false;
  }
  if (pages && b.remains == Remains::ReadOnlyPages) r.make_writable(b.place);
  r.set_owner(b.place, kNoBlock);
  pages ? r.free_pages(b.place) : r.free_address(b.place);
  blocks_.destroy(id);
}

// --- back into fast memory

// The pages are filled out of sight.
void Moves::start_read(BlockId id, bool urgent) {
  Block& b = blocks_[id];
  check(b);
  if (b.state == State::Blank) return give_pages(id);
  memory_.region(b).begin_fill(b.place);
  b.state = State::Reading;
  mover_.enqueue(id, fastest_with(b), kFast, Then::Keep, urgent);
}

void Moves::give_pages(BlockId id) {
  Block& b = blocks_[id];
  memory_.region(b).give_pages(b.place, areas_.run_short());
  b.has_come();
  b.state = State::Dirty;
  if (!b.can_be_written() && !memory_.region(b).make_read_only(b.place)) fatal("mprotect", errno);
  budget_.account_resident(static_cast<std::int64_t>(b.paged_bytes));
}

void Moves::read(BlockId id, const Transfer& t) {
  Block& b = blocks_[id];
  bool appears = t.error == 0 && b.state != State::Dead;
  memory_.region(b).end_fill(b.place, appears);
  if (b.state == State::Dead) return free_drained(id);
  b.read_error = t.error;
  b.state = appears ? State::Clean : State::Absent;
  b.has_come();
  if (!appears) {
    if (b.valid != bit(t.source)) forget(b, bit(t.source)), b.read_error = 0;  // it is elsewhere too
    return;
  }
  budget_.account_resident(static_cast<std::int64_t>(b.paged_bytes));
  b.fetched += moved_bytes(b);
  fetched_ += moved_bytes(b);
  if (t.then != Then::Keep) drop(id, t.source);
}

// --- between slower tiers

bool Moves::start_copy(BlockId id, Rank source, Rank target, Then then) {
  Block& b = blocks_[id];
  check(b);
  if (target == kFast || (b.valid & bit(source)) == 0 || (b.valid & bit(target)) != 0 || b.transfer.busy()) return false;
  if (tiers_.in_place(target) != nullptr || tiers_[target].reserve(memory_.extent(b)) != 0) return false;
  mover_.enqueue(id, source, target, then);
  return true;
}

void Moves::drop(BlockId id, Rank rank) {
  Block& b = blocks_[id];
  check(b);
  if (rank == b.home) {
    if (b.state == State::Writing) evict_when_written(id);
    if (b.state == State::Clean && !b.transfer.busy()) take_pages(id);
    return;
  }
  if ((b.valid & bit(rank)) == 0 || tiers_[rank].space().capacity == 0) return;  // space without bounds is no gain
  if (b.transfer.busy() && b.transfer.source == rank) {  // once what is read there is where it goes
    b.transfer.then = Then::Drop;
  } else if (b.valid != bit(rank)) {
    forget(b, bit(rank));
  } else if (b.state == State::Clean && !b.transfer.busy()) {
    make_dirty(id);
  }
}

// --- recipes

bool Moves::keep_recipe(BlockId id, std::uint64_t recipe) {
  Block& b = blocks_[id];
  check(b);
  if (b.state != State::Dirty || b.transfer.busy() || b.home != kFast) return false;
  if (b.can_be_written() && !memory_.region(b).make_read_only(b.place)) {
    memory_.region(b).make_writable(b.place);
    return false;
  }
  b.recipe = recipe;
  b.state = State::Clean;
  return true;
}

void Moves::forget_recipe(BlockId id) {
  Block& b = blocks_[id];
  if (b.recipe == 0) return;
  if (b.valid == 0) return make_dirty(id);
  b.recipe = 0;
}

void Moves::guard(BlockId id) {
  Block& b = blocks_[id];
  check(b);
  bool writable = b.can_be_written();
  ++b.guards;
  if (writable && !memory_.region(b).make_read_only(b.place)) fatal("mprotect", errno);
}

void Moves::unguard(BlockId id) {
  Block& b = blocks_[id];
  check(b);
  --b.guards;
  if (b.can_be_written()) memory_.region(b).make_writable(b.place);
}

void Moves::hand_over(BlockId from, BlockId to) {
  Block &made = blocks_[from], &b = blocks_[to];
  check(made), check(b);
  memory_.region(b).hand_over(made.place, b.place);
  made.state = State::Blank;
  b.state = State::Dirty;
  b.recipe = 0;
  --unmade_;
  made_anew_ += moved_bytes(b);
  b.heirs = std::exchange(made.heirs, Heirs::None);
  b.scattered = std::exchange(made.scattered, false);
  if (!b.can_be_written() && !memory_.region(b).make_read_only(b.place)) fatal("mprotect", errno);
  contents_change(from);
}

// --- transfers

// Reads only what cannot change while a transfer is under way [Note: invariants, I4].
int Moves::carry(const Block& b, std::uint32_t chunk, bool pages, void* buffer) {
  const Transfer& t = b.transfer;
  std::uint64_t begin = chunk * kChunk;
  if (pages) return tiers_.migrate(t.source, t.target, b.address + begin, std::min<std::uint64_t>(kChunk, b.paged_bytes - begin));
  Extent extent = memory_.extent(b, begin, std::min<std::uint64_t>(kChunk, moved_bytes(b) - begin));
  if (t.source == kFast || tiers_.in_place(t.source) != nullptr) return tiers_.write(t.target, extent, b.address + begin);
  if (t.target != kFast) {
    int error = tiers_.read_into(t.source, extent, buffer);
    return error != 0 ? error : tiers_.write(t.target, extent, buffer);
  }
  Region& r = memory_.region(b);
  auto first = static_cast<std::uint32_t>(begin / r.page());
  return tiers_.read(t.source, extent, [&](std::uint64_t at, iovec* parts) {
    int count = 0;
    for (; count < kMostParts && at < extent.bytes; ++count) {
      auto page = first + static_cast<std::uint32_t>(at / r.page());
      Run run = r.filling(b.place.first + page, b.place.count - page);
      parts[count] = {r.address(run.first), std::min<std::uint64_t>(run.count * r.page(), extent.bytes - at)};
      at += parts[count].iov_len;
    }
    return count;
  });
}

void Moves::arrived(BlockId id) {
  Block& b = blocks_[id];
  Transfer t = b.transfer;
  Lane lane = t.target < t.source ? Lane::Back : Lane::Out;
  if (t.error == 0) tape_.moved({b.recorded, t.asked_tick, lane, t.source, t.target, t.asked_ns, t.begun_ns, now_ns()});
  b.transfer = {};
  if (t.gives_back != 0) tiers_.release(memory_.extent(b), t.gives_back);
  if (t.brings == Brings::Pages) {
    migrated(id, t);
  } else if (t.target == kFast) {
    read(id, t);
  } else if (b.state == State::Dead) {
    free_drained(id);
  } else if (t.brings == Brings::Nothing) {
    // somebody wrote, and it is dirty
  } else if (t.source == b.home) {
    written(id, t);
  } else if (t.error != 0) {
    tiers_.release(memory_.extent(b), bit(t.target));
  } else {
    b.valid |= bit(t.target);
    if (t.then != Then::Keep) drop(id, t.source);
  }
  mover_.changed();
  on_arrival_(listener_);
}

}  // namespace ebbtide
