// Carries out transfers: a queue for each link (a tier to another), and threads that take chunks from them. A thread that
// waits carries out chunks itself, so waiting never depends on another thread being alive; copies between two slower
// tiers, for which nobody waits, are the threads' alone.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "block_table.hpp"
#include "system.hpp"
#include "tape.hpp"
#include "types.hpp"

namespace ebbtide {

using Lock = std::unique_lock<std::mutex>;

// Where a test may interfere with a transfer.
enum class Point : std::uint8_t { Queued, BeforeChunk, AfterChunk, Evicting };

// Called without the mutex, except at Evicting and Queued.
struct Hook {
  void (*call)(Point, BlockId, void*) = nullptr;
  void* argument = nullptr;

  void operator()(Point point, BlockId id) const {
    if (call != nullptr) call(point, id, argument);
  }
};

// What is moved. `buffer` has room for a chunk, and is null where there is none: on its way from or to fast memory.
class Cargo {
 public:
  virtual int carry(const Block& b, std::uint32_t chunk, bool pages, void* buffer) = 0;  // without the mutex; 0 or errno
  virtual void arrived(BlockId id) = 0;                                      // under it: the transfer has ended
 protected:
  ~Cargo() = default;
};

class Mover {
 public:
  Mover(BlockTable& blocks, Tape& tape, const Hook& hook, Rank slowest, Cargo& cargo)
      : blocks_(blocks), tape_(tape), hook_(hook), slowest_(slowest), cargo_(cargo) {
    list_links();
  }

  void start(std::mutex& mutex, unsigned threads);
  void stop(std::mutex& mutex);  // joins them; tests only

  // --- all under the mutex
  void enqueue(BlockId id, Rank source, Rank target, Then then, bool urgent = false);  // urgent: somebody waits
  // What has not been handed out is not begun, and what has been is in vain. Whether nothing of it is left.
  bool cut_short(BlockId id);
  // Carries out a chunk, or waits for a change; either way a short while. A chunk towards slower tiers first, or back.
  void wait(Lock& lock, bool outwards);
  void changed();  // something that a waiter may be waiting for has happened
  std::uint64_t changes() const { return changes_; }
  unsigned busy() const { return busy_; }                  // transfers
  std::int64_t progress_ns() const { return progress_ns_; }  // when a chunk was last finished
  std::array<std::int64_t, 2> copy_ns() const { return copy_ns_; }  // threads' time in copies into fast memory, and others

  // A fork is near: no chunk starts, and none is under way when hush() returns.
  void hush(Lock& lock);
  void resume();
  bool hushed() const { return hushed_ > 0; }
  void renew();  // in the child, whose copies of these may be in any state

 private:
  struct Link {
    Rank source, target;
    BlockId head = kNoBlock, tail = kNoBlock;
  };

  void list_links();
  Link& link(const Transfer& t) { return links_[link_at_[t.source][t.target]]; }
  void push(BlockId id, bool first);
  void dequeue(BlockId id);
  Link* next(std::size_t preferred, bool across);
  bool carry_out_chunk(Lock& lock, std::size_t preferred, void* buffer);
  void io_loop(std::mutex& mutex, std::size_t preferred, void* buffer);

  BlockTable& blocks_;
  Tape& tape_;
  const Hook& hook_;
  const Rank slowest_;
  Cargo& cargo_;
  std::vector<Link> links_;  // back from each tier, by rank; out to each; then those between two slower ones
  std::array<std::array<std::uint8_t, kMostTiers>, kMostTiers> link_at_{};

  std::condition_variable work_;     // a transfer was queued, or this stops
  std::condition_variable changed_;  // room, residency or budget may have changed
  std::vector<std::thread> threads_;
  std::vector<std::unique_ptr<Reservation>> buffers_;  // for a chunk each, on its way between slower tiers
  bool stopping_ = false;
  unsigned hushed_ = 0;  // forks under way
  unsigned in_flight_ = 0;  // chunks
  unsigned busy_ = 0;
  std::uint64_t changes_ = 0;
  std::int64_t progress_ns_ = now_ns();
  std::array<std::int64_t, 2> copy_ns_{};
};

}  // namespace ebbtide
