// One managed storage.
#pragma once

#include <cstdint>

#include "command.hpp"
#include "free_runs.hpp"
#include "types.hpp"

namespace ebbtide {

// One copy of a whole block from a tier to another, cut into chunks that any thread may carry out. At most one per block
// at a time.
struct Transfer {
  Rank source = kFast;
  Rank target = kFast;
  Then then = Then::Keep;
  bool queued = false;     // in a queue: some chunk has not been handed out
  bool cancelled = false;  // what it copies has changed or died: it drains in vain
  Ranks gives_back = 0;    // tiers whose space for it is released when it ends
  bool migrates = false;   // its pages move, from memory to memory [Note: in place]
  std::uint32_t chunks = 0;
  std::uint32_t handed_out = 0;
  std::uint32_t done = 0;
  int error = 0;
  std::uint32_t asked_tick = 0;
  std::int64_t asked_ns = 0;
  std::int64_t begun_ns = 0;
  BlockId next = kNoBlock;  // queue links
  BlockId previous = kNoBlock;

  bool busy() const { return done < chunks; }
};

struct Block {
  char* address = nullptr;
  std::uint64_t nbytes = 0;       // as requested
  std::uint64_t paged_bytes = 0;  // page-rounded: what it costs while resident
  std::uint64_t before = 0;       // bytes of its storage that are the pieces' before it [Note: pieces]
  std::uint64_t after = 0;        // and after it
  Shape shape;
  Run place;  // in its region; slower tiers know its contents by that

  State state = State::Dead;
  Ranks valid = 0;  // the slower tiers that have its contents
  Rank home = kFast;  // whose memory its pages are [Note: in place]
  Kind kind = Kind::Other;
  bool classified = false;
  bool born_in_step = false;
  bool read_only = false;         // the protection of its pages
  bool drains_with_pages = false;  // dead, with pages that are given back when its transfer ends
  bool inherited = false;         // a forked child may share its pages
  bool scattered = false;         // some of its pages are another tier's than its home, which gave them up half way
  bool blank = false;             // Absent without contents: its first pages wait for room
  bool given = false;             // the child that is forked right now gets its pages
  bool born_in_operator = false;  // and that operator has not ended yet
  bool transient = false;         // it found no room at its birth, or lost it since
  bool prefetched = false;        // its fetch, under way or waiting for room, was the schedule's idea
  bool refetch_pending = false;   // the schedule believes it in memory, and nothing there brings it back
  int read_error = 0;             // of its last fetch
  std::uint32_t version = 0;      // of what slower tiers have of it [Note: children]
  std::uint32_t returns = 0;      // how often a fault had to bring it back in one stretch [Note: stretches],
  std::uint64_t touched_in = 0;   // which was this one

  std::uint32_t generation = 0;      // changes when the storage dies: tells stale pins apart
  std::uint32_t external_pins = 0;   // by those who reach its memory without a fault (the kernel, for NumPy)
  std::uint32_t pins = 0;            // by operators
  std::uint64_t pinned_by = 0;       // serial of the innermost operator that pinned it
  std::uint64_t last_use = 0;
  LineOf line;                       // of a piece: where its storage was made
  std::uint64_t serial = 0;          // of the allocation, unique in the process
  std::uint32_t recorded = kNever;   // its number in the recording under way
  std::uint32_t scheduled = kNever;  // its number in the schedule it was last bound to

  // traffic since it was last added to its kind's counters
  std::uint64_t evicted = 0;
  std::uint64_t fetched = 0;
  std::uint64_t written = 0;

  Transfer transfer;
  std::uint32_t live_index = 0;  // place in the list of live blocks

  bool is_piece() const { return before + after > 0; }
  bool has_pages() const { return state == State::Dirty || state == State::Clean || state == State::Writing; }
  bool migrates() const { return transfer.migrates && transfer.busy(); }
  // Whether fast memory has its pages, or will have, or gives them up.
  bool is_fast() const { return has_pages() && home == kFast; }
  bool leaves_fast() const { return is_fast() && migrates(); }
  bool is_away() const { return state == State::Absent || (has_pages() && home != kFast) || leaves_fast(); }
  bool is_evicting() const { return leaves_fast() || (state == State::Writing && transfer.then != Then::Keep && home == kFast); }
};

// What is transferred: the storage, not the rest of its last huge page, in chunks.
inline constexpr std::size_t kChunk = 2 * kHugePage;
inline std::uint64_t moved_bytes(const Block& b) { return round_up(b.nbytes, kSmallPage); }

}  // namespace ebbtide
