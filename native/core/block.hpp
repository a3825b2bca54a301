// One managed storage, or a piece of one. All of it is guarded by the arena's mutex, but for what a transfer reads while it is
// under way [Note: invariants, I4].
//
// [Note: who writes a block]  Each group of fields names its writers. Everybody reads. What a block is follows from `state`,
// `valid` and `home`, which Moves alone changes once the block was made; what is told by these is told nowhere else.
#pragma once

#include <bit>
#include <cstdint>

#include "command.hpp"
#include "free_runs.hpp"
#include "types.hpp"

namespace ebbtide {

// What a transfer brings to its target.
enum class Brings : std::uint8_t {
  Contents,  // a copy of them
  Pages,     // the pages themselves, from memory to memory [Note: in place]
  Nothing,   // what it copies has changed or died: it drains in vain
};

// One move of a whole block from a tier to another, cut into chunks that any thread may carry out. At most one per block
// at a time. Mover writes it, but for `then`, `brings` and `gives_back`, which Moves does.
struct Transfer {
  Rank source = kFast;
  Rank target = kFast;
  Then then = Then::Keep;
  Brings brings = Brings::Contents;
  RankSet gives_back = 0;  // tiers whose space for it is released when it ends
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
  bool queued() const { return handed_out < chunks; }  // in its link's queue
};

// What a dead block's place still has, until its transfer has drained.
enum class Remains : std::uint8_t { NoPages, WritablePages, ReadOnlyPages };

// Which forked children have its pages, and so copies of them once somebody writes.
enum class Heirs : std::uint8_t {
  None,
  Some,    // children may have them
  Newest,  // so does the child that is being forked; in that child: they are its own
};

// Who brings it back to fast memory, as far as the schedule goes.
enum class Return : std::uint8_t {
  Unplanned,
  Pending,   // the schedule believes it in memory, and nothing there brings it back: a refetch will
  Prefetch,  // its fetch, under way or waiting for room, was the schedule's idea
};

struct Block {
  // --- from its birth on (Arena), until its place is given back
  char* address = nullptr;
  std::uint64_t nbytes = 0;       // as requested
  std::uint64_t paged_bytes = 0;  // page-rounded: what it costs while resident
  std::uint64_t before = 0;       // bytes of its storage that are the pieces' before it [Note: pieces]
  std::uint64_t after = 0;        // and after it
  std::uint64_t whole = 0;        // of a piece, its storage: a number, unique in the process
  Shape shape;
  Run place;    // in its region; slower tiers know its contents by that
  LineOf line;  // of a piece: where its storage was made
  std::uint32_t generation = 0;  // changes when the storage dies: tells stale pins apart (BlockTable too)

  // --- where its bytes are: Moves, and Arena at its birth and first use
  State state = State::Dead;
  RankSet valid = 0;   // the slower tiers that have its contents
  Rank home = kFast;   // whose memory its pages are [Note: in place]
  std::uint64_t recipe = 0;  // by which it can be made anew: the recipe's number; 0: none [Note: recipes]
  std::uint32_t guards = 0;  // recipes that read it: it is read-only
  bool scattered = false;  // some of its pages are another tier's than its home, which gave them up half way
  Remains remains = Remains::NoPages;
  Heirs heirs = Heirs::None;  // before a fork and after it: Arena (fork.cpp)
  int read_error = 0;         // of its last fetch
  std::uint32_t version = 0;  // of what slower tiers have of it [Note: children]
  Transfer transfer;

  // --- what it is to the training: Arena (classify), Step
  Kind kind = Kind::Other;  // of what nobody classified: Activation in the step of its birth, then Other
  bool classified = false;

  // --- who uses it: Arena, for operators and for whoever asks for an address
  std::uint32_t external_pins = 0;  // by those who reach its memory without a fault (the kernel, for NumPy)
  std::uint32_t pins = 0;           // by operators
  std::uint64_t pinned_by = 0;      // serial of the innermost operator that pinned it
  std::uint64_t last_use = 0;
  bool born_in_operator = false;  // and that operator has not ended yet (Step, at its birth)
  std::uint32_t returns = 0;      // how often a fault had to bring it back in one stretch [Note: stretches],
  std::uint64_t touched_in = 0;   // which was this one (Stretch)

  // --- what the decider and the schedule know of it
  bool transient = false;  // it found no room at its birth, or lost it since: Arena, Victims
  Return comes_back = Return::Unplanned;  // Step, Refetches; Moves, when it has come
  std::uint64_t serial = 0;          // of the allocation, unique in the process: Step
  std::uint32_t recorded = kNever;   // its number in the recording under way: Step
  std::uint32_t scheduled = kNever;  // its number in the schedule it was last bound to: Step, Replay

  // --- traffic since it was last added to its kind's counters: Moves; Arena adds it up
  std::uint64_t evicted = 0;
  std::uint64_t fetched = 0;
  std::uint64_t written = 0;

  std::uint32_t live_index = 0;  // place in the list of live blocks: BlockTable

  bool is_piece() const { return before + after > 0; }
  bool has_pages() const { return state == State::Dirty || state == State::Clean || state == State::Writing; }
  bool is_absent() const { return state == State::Absent || state == State::Blank || state == State::Unmade; }
  bool can_be_written() const { return state == State::Dirty && guards == 0; }  // without a fault
  bool migrates() const { return transfer.brings == Brings::Pages && transfer.busy(); }
  // Whether fast memory has its pages, or will have, or gives them up.
  bool is_fast() const { return has_pages() && home == kFast; }
  bool leaves_fast() const { return is_fast() && migrates(); }
  bool is_away() const { return (is_absent() && state != State::Unmade) || (has_pages() && home != kFast) || leaves_fast(); }
  bool is_evicting() const { return leaves_fast() || (state == State::Writing && transfer.then != Then::Keep && home == kFast); }

  Stall why_it_is_waited_for() const {
    if (state == State::Blank) return Stall::Room;
    return comes_back == Return::Prefetch ? Stall::LatePrefetch : Stall::DemandFetch;
  }
  void has_come() {
    if (comes_back == Return::Prefetch) comes_back = Return::Unplanned;
  }
};

// Which of the rules about one block is broken; null: none. No rule is about two blocks or about sums: Arena::check_invariants()
// has those.
const char* what_is_wrong(const Block& b);

// At the entry of whoever moves a block: its rules hold. Tests are built with EBBTIDE_CHECKS.
#ifdef EBBTIDE_CHECKS
void check(const Block& b);  // ends the process with the rule that is broken
#else
inline void check(const Block&) {}
#endif

// The fastest slower tier that has its contents; callers MUST know that one does.
inline Rank fastest_with(const Block& b) { return static_cast<Rank>(std::countr_zero(b.valid)); }

// What is transferred: the storage, not the rest of its last huge page, in chunks.
inline constexpr std::size_t kChunk = 2 * kHugePage;
inline std::uint64_t moved_bytes(const Block& b) { return round_up(b.nbytes, kSmallPage); }

}  // namespace ebbtide
