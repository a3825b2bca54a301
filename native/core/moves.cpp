// Moving storages between their pages and the spill file, and the threads that do it.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>

#include "arena.hpp"
#include "checksum.hpp"
#include "stall_scope.hpp"

namespace ebbtide {

namespace {
constexpr int kMostParts = 64;  // of one read, in memory
constexpr auto kWaitAtMost = std::chrono::milliseconds(50);
}  // namespace

// --- beginning and ending a move (all under the mutex)

// Clean: gone at once. Dirty: read-only from now on, and gone when it is written, unless somebody writes to it first.
bool Arena::start_evict(BlockId id) {
  Block& b = blocks_[id];
  if (b.state == State::Clean) {
    evict_clean(id);
    changed();
    return true;
  }
  if (int error = region(b).spill().reserve((b.place.first + std::uint64_t{b.place.count}) * region(b).page()); error != 0) {
    spill_error_ = error;
    spill_failed_ = &region(b).spill();
    ++write_failures_;
    return false;
  }
  if (!region(b).make_read_only(b.place)) {
    region(b).make_writable(b.place);  // it may have become read-only in part
    return false;
  }
  file_changes(id);
  b.read_only = true;
  b.state = State::Writing;
  if (!b.write_back) evicting_ += b.paged_bytes;
  b.transfer.out = true;
  enqueue(id);
  return true;
}

// Takes the pages from a clean block.
void Arena::evict_clean(BlockId id) {
  Block& b = blocks_[id];
  if (options_.hook != nullptr) options_.hook(Point::Evicting, id, options_.hook_argument);
  if (areas_run_short() || b.inherited) {
    decommit(b);
  } else {
    region(b).unmap(b.place);
  }
  if (limit_ != 0 && reserved_ > limit_) release_cached(reserved_ - limit_, {});
  account_resident(-static_cast<std::int64_t>(b.paged_bytes));
  b.evicted += moved_bytes(b);
  b.state = State::Absent;
  b.evict_anyway = false;
  b.inherited = false;
}

// A write came first. Chunks on their way finish in vain; the rest are not begun.
void Arena::cancel(BlockId id) {
  Block& b = blocks_[id];
  ++counters_.cancelled;
  if (!b.write_back) evicting_ -= b.paged_bytes;
  b.state = State::Dirty;
  b.evict_anyway = b.write_back = false;
  if (b.transfer.queued) dequeue(id);
  b.transfer.chunks = b.transfer.handed_out;
  if (!b.transfer.busy()) {
    b.transfer = {};
    --busy_transfers_;
  }
  changed();
}

void Arena::make_dirty(BlockId id) {
  Block& b = blocks_[id];
  if (b.state == State::Writing) cancel(id);
  region(b).make_writable(b.place);
  b.read_only = false;
  b.state = State::Dirty;
}

// The pages have been claimed. They are filled out of sight.
void Arena::start_read(BlockId id, bool urgent) {
  Block& b = blocks_[id];
  region(b).begin_fill(b.place);
  b.read_error = 0;
  b.state = State::Reading;
  b.transfer.out = false;
  enqueue(id, urgent);
}

void Arena::complete_read(BlockId id, int error) {
  Block& b = blocks_[id];
  bool appears = error == 0 && !b.released;
  region(b).end_fill(b.place, appears);
  if (b.released) return free_address(id);
  b.read_error = error;
  b.state = appears ? State::Clean : State::Absent;
  b.prefetched = false;
  if (!appears) return;
  b.read_only = true;
  account_resident(static_cast<std::int64_t>(b.paged_bytes));
  b.fetched += moved_bytes(b);
  came_back_ += moved_bytes(b);
}

void Arena::complete(BlockId id) {
  Block& b = blocks_[id];
  Transfer transfer = b.transfer;
  tape_.moved(
      {b.recorded, transfer.asked_tick, transfer.out ? Lane::Out : Lane::Back, transfer.asked_ns, transfer.begun_ns, now_ns()});
  b.transfer = {};
  --busy_transfers_;
  if (!transfer.out) {
    complete_read(id, transfer.error);
  } else if (b.released) {
    b.released = false;
    free_pages(id);
  } else if (b.state == State::Writing) {
    if (!b.write_back) evicting_ -= b.paged_bytes;
    if (transfer.error != 0) {
      spill_error_ = transfer.error;
      spill_failed_ = &region(b).spill();
      ++write_failures_;
      b.state = State::Dirty;
      b.evict_anyway = b.write_back = false;
      make_dirty(id);
    } else {
      b.state = State::Clean;
      b.written += moved_bytes(b);
      if ((b.pins == 0 && !b.write_back) || b.evict_anyway) evict_clean(id);  // else an operator took it up meanwhile, say
      b.write_back = false;
    }
  }  // else it was cancelled
  changed();
  start_prefetches();
}

// Something that a waiter may be waiting for has happened: every change wakes the waiters.
void Arena::changed() {
  ++changes_;
  changed_.notify_all();
}

// --- the queues

// Somebody waits for an urgent one: it goes first.
void Arena::enqueue(BlockId id, bool urgent) {
  Block& b = blocks_[id];
  Transfer& t = b.transfer;
  t.queued = true;
  t.asked_ns = now_ns();
  t.asked_tick = tape_.clock().tick;
  t.chunks = static_cast<std::uint32_t>((moved_bytes(b) + kChunk - 1) / kChunk);
  (urgent ? t.next : t.previous) = urgent ? queue_head_[t.out] : queue_tail_[t.out];
  (t.previous == kNoBlock ? queue_head_[t.out] : blocks_[t.previous].transfer.next) = id;
  (t.next == kNoBlock ? queue_tail_[t.out] : blocks_[t.next].transfer.previous) = id;
  ++busy_transfers_;
  if (options_.hook != nullptr) options_.hook(Point::Queued, id, options_.hook_argument);
  work_.notify_all();
}

void Arena::dequeue(BlockId id) {
  Transfer& t = blocks_[id].transfer;
  (t.previous == kNoBlock ? queue_head_[t.out] : blocks_[t.previous].transfer.next) = t.next;
  (t.next == kNoBlock ? queue_tail_[t.out] : blocks_[t.next].transfer.previous) = t.previous;
  t.next = t.previous = kNoBlock;
  t.queued = false;
}

BlockId Arena::next_transfer(bool prefer_out) const {
  return queue_head_[prefer_out] != kNoBlock ? queue_head_[prefer_out] : queue_head_[!prefer_out];
}

// Carries out one chunk of the next transfer, without the mutex. False: there is nothing to do.
bool Arena::carry_out_chunk(Lock& lock, bool prefer_out) {
  BlockId id = next_transfer(prefer_out);
  if (id == kNoBlock || quiet_) return false;
  Block& b = blocks_[id];
  std::uint32_t chunk = b.transfer.handed_out++;
  if (chunk == 0) b.transfer.begun_ns = now_ns();
  if (b.transfer.handed_out == b.transfer.chunks) dequeue(id);
  ++chunks_in_flight_;
  bool out = b.transfer.out;
  lock.unlock();
  if (options_.hook != nullptr) options_.hook(Point::BeforeChunk, id, options_.hook_argument);
  std::int64_t begun = now_ns();
  int error = transfer_chunk(b, chunk, out);
  if (options_.hook != nullptr) options_.hook(Point::AfterChunk, id, options_.hook_argument);
  lock.lock();
  --chunks_in_flight_;
  progress_ns_ = now_ns();
  counters_.copy_ns[out] += progress_ns_ - begun;
  if (error != 0) b.transfer.error = error;
  ++b.transfer.done;
  if (!b.transfer.busy()) complete(id);
  if (quiet_) changed();
  return true;
}

// Reads only what cannot change while a transfer is under way [Note: invariants, I4]. What a checksum was taken of may be
// written to meanwhile: that cancels the eviction, and the next one writes, and takes the checksum of, all of it.
int Arena::transfer_chunk(const Block& b, std::uint32_t chunk, bool out) {
  Region& r = region(b);
  std::uint64_t begin = chunk * kChunk;
  std::uint64_t bytes = std::min<std::uint64_t>(kChunk, moved_bytes(b) - begin);
  auto page = static_cast<std::uint32_t>(begin / r.page());
  Run places{b.place.first + page, b.place.count - page};
  if (!out) return read_chunk(r, places, bytes);
  Checksum sum;
  const bool checked = checksum_;  // once: it may be switched meanwhile
  if (checked) sum.add(b.address + begin, bytes);
  r.checksum(places.first) = checked ? sum.value() : 0;
  iovec part{b.address + begin, bytes};
  return r.spill().write(&part, 1, places.first * r.page());
}

// EBADMSG: other bytes came back than were written.
int Arena::read_chunk(Region& r, Run places, std::uint64_t bytes) {
  std::uint32_t expected = checksum_ ? r.checksum(places.first) : 0;
  Checksum sum;
  for (std::uint64_t at = 0; at < bytes;) {
    iovec parts[kMostParts], read[kMostParts];  // a read uses up the parts that it is given
    int count = 0;
    std::uint64_t offset = places.first * r.page() + at;
    for (; count < kMostParts && at < bytes; ++count) {
      auto page = static_cast<std::uint32_t>(at / r.page());
      Run run = r.filling(places.first + page, places.count - page);
      parts[count] = read[count] = {r.address(run.first), std::min<std::uint64_t>(run.count * r.page(), bytes - at)};
      at += parts[count].iov_len;
    }
    if (int error = r.spill().read(read, count, offset); error != 0) return error;
    for (int i = 0; i < count && expected != 0; ++i) sum.add(parts[i].iov_base, parts[i].iov_len);
  }
  if (expected == 0 || sum.value() == expected) return 0;
  if (!other_bytes_.exchange(true))
    say("other bytes came back from the spill directory than were written there; they are read again");
  return EBADMSG;
}

void Arena::io_loop(unsigned index) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  Lock lock(mutex_);
  while (!stopping_) {
    if (!carry_out_chunk(lock, index % 2 == 1)) work_.wait(lock);  // one thread prefers each direction
  }
}

// Helps, or waits for a change; either way a short while.
void Arena::wait(Lock& lock, bool prefer_out) {
  if (!carry_out_chunk(lock, prefer_out)) changed_.wait_for(lock, kWaitAtMost);
}

// --- moves that somebody waits for

// 0 when the block is resident (or died meanwhile), else the errno of the read.
int Arena::ensure_resident(Lock& lock, BlockId id) {
  Block& b = blocks_[id];
  std::uint32_t generation = b.generation;
  std::int64_t since = now_ns();
  for (int tries = 0; b.generation == generation;) {
    if (b.state == State::Reading) {
      wait(lock, false);
      continue;
    }
    if (b.state != State::Absent) return 0;
    if (tries == kReadTries) return b.read_error;
    if (wait_for_areas(lock, since)) continue;
    bool claimed = try_claim(b.shape);
    if (!claimed) {
      Outcome outcome = make_room(lock, b.shape);
      bool wanted = b.generation == generation && b.state == State::Absent;
      if (outcome == Outcome::Progress || !wanted) continue;
      claim_over_budget(b.shape, outcome);
    }
    start_read(id, true);
    ++tries;
  }
  return 0;
}

std::uint64_t Arena::evict(const void* address) {
  Lock lock(mutex_);
  begin_stretch();
  BlockId id = find_live(address);
  if (id == kNoBlock) return 0;
  Block& b = blocks_[id];
  std::uint32_t generation = b.generation;
  while (b.generation == generation && b.transfer.busy()) wait(lock, true);  // an earlier move is still draining
  if (b.generation != generation || !evictable(b) || !start_evict(id)) return 0;
  while (b.generation == generation && b.state == State::Writing) wait(lock, true);
  return b.generation == generation && b.state == State::Absent ? b.paged_bytes : 0;
}

int Arena::fetch(const void* address) {
  if (in_child_) return fetch_in_child(address);
  Lock lock(mutex_);
  begin_stretch();
  BlockId id = find_live(address);
  return id == kNoBlock ? 0 : ensure_resident(lock, id);
}

void Arena::prefetch(std::span<const Operand> operands) {
  Lock lock(mutex_);
  if (replay_.active()) return;  // the schedule knows better
  std::uint64_t missing = 0;
  for (const Operand& operand : operands) {
    BlockId id = find_live(operand.address);
    if (id == kNoBlock) continue;
    Block& b = blocks_[id];
    b.last_use = ++stamp_;  // about to be used: not the next victim
    if (b.state != State::Absent) continue;
    if (claim_for_fetch(b)) {
      start_read(id);
    } else {
      missing += b.paged_bytes;
    }
  }
  if (missing > evicting_) start_evictions(missing - evicting_, Shield::None);
}

// Evicts some block at some moments, also from under the operator that uses it. Off unless asked for.
void Arena::chaos() {
  if (chaos_rate_ <= 0.0 || blocks_.live().empty()) return;
  auto random = [this] {  // xorshift64*
    chaos_state_ ^= chaos_state_ >> 12;
    chaos_state_ ^= chaos_state_ << 25;
    chaos_state_ ^= chaos_state_ >> 27;
    return (chaos_state_ * 2685821657736338717ull) >> 11;
  };
  if (static_cast<double>(random()) / static_cast<double>(1ull << 53) >= chaos_rate_) return;
  BlockId id = blocks_.live()[random() % blocks_.live().size()];
  Block& b = blocks_[id];
  if (!evictable(b)) return;
  b.evict_anyway = true;
  if (!start_evict(id)) b.evict_anyway = false;
}

}  // namespace ebbtide
