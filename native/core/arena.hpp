// The arena owns the pages of the training storages; their addresses never change. It is the one face of what lies below
// it (docs/design.md has the house on a page) and holds the one mutex; storages and operators are all it does itself.
//
// [Note: invariants]  Checked by check_invariants(), after every operation of the stress tests.
//   I1  reserved bytes = pages of blocks in fast memory and of dead ones that drain + cached pages + pages being read into or
//       claimed for a migration; pages of blocks that are used in place in a slower tier are that tier's, and not reserved
//   I2  reserved bytes <= the limit, unless over_budget says otherwise (or the limit was lowered and evictions are under way)
//   I3  a block's state tells its protection, and with its valid tiers where its bytes are ([Note: what a state costs])
//   I4  a block whose transfer is busy keeps its place, and its space on the tiers of that transfer, until it has drained
//   I5  nobody touches a block's memory while holding the mutex: the fault handler takes it
//   I6  whatever the fault handler can reach neither allocates nor frees
//
// [Note: verbs]  allocate() and release() are of storages, enter() and exit() of operators, pin() and unpin() of addresses,
// evict() and fetch() of contents; a migration is either, of pages [Note: in place]. Of a slower tier contents take space, which is reserve()d and release()d; of fast memory
// they take room, which is what a claim can take of the budget. Reserved bytes are those that were claimed.
//
// [Note: one mutex]  All state is behind one mutex; system calls that move pages run under it (about 25 us a huge
// page beside threads that compute), reads and writes of slower tiers do not. A thread that waits carries out queued
// transfers itself, so waiting never depends on another thread being alive (a forked child has none).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "areas.hpp"
#include "block_table.hpp"
#include "budget.hpp"
#include "counters.hpp"
#include "decider.hpp"
#include "fast_memory.hpp"
#include "mover.hpp"
#include "moves.hpp"
#include "operators.hpp"
#include "refetches.hpp"
#include "replay.hpp"
#include "room.hpp"
#include "stall_clock.hpp"
#include "step.hpp"
#include "stretch.hpp"
#include "tape.hpp"
#include "tiers.hpp"
#include "types.hpp"
#include "victims.hpp"
#include "wait_label.hpp"

namespace ebbtide {

// What became of a storage's recipe when it was to be forgotten.
enum class Forgotten : std::uint8_t {
  Whole,  // it was good for all of the storage
  Part,  // or for a part at most: somebody had written to the rest, or there was none
  NotYet,  // some of the storage has to be made first
};

struct Options {
  unsigned io_threads = 2;  // for each slower tier
  std::int64_t watchdog_ns = 30'000'000'000;
  double chaos_rate = 0.0;  // chance, at every operator and allocation, of moving a random block
  std::uint64_t chaos_seed = 0;
  std::size_t huge_region_bytes = std::size_t{1} << 40;
  std::size_t small_region_bytes = std::size_t{1} << 38;
  std::uint64_t least_piece = 0;  // storages of twice this are in pieces; 0: none is [Note: pieces]
  std::uint64_t most_areas = 0;  // memory areas of the process; 0: vm.max_map_count
  Hook hook;
  WaitLabels labels;
  void (*on_governor_wake)() = nullptr;  // called by the governor every 10 ms or sooner, without the mutex
  // The maker [Note: recipes]: makes what lies there, without the mutex.
  void (*make)(const void* address) = nullptr;
  void (*make_all)() = nullptr;  // all that is away, likewise
  // Has a thread of its own make that, or, to write there, what is made of it. Returns at once; from the fault handler, too.
  void (*ask_to_make)(const void* address, bool to_write) = nullptr;
  bool (*unpins_come)() = nullptr;  // whether external pins will be let go, whatever threads wait for
};

class Arena {
 public:
  Arena(const Options& options, Tiers::List slower_tiers);  // throws ArenaError
  ~Arena();  // tests only; a training process never destroys its arena
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // --- storages
  // Waits for room; throws ArenaError when the slowest tier cannot take more. `untouched`: whoever asks does not fill it yet, so
  // its pieces, if it has any, wait for whoever does.
  void* allocate(std::size_t nbytes, bool untouched = false);
  void release(void* address);
  bool contains(const void* p) const { return memory_.contains(p); }
  void classify(const void* address, Kind kind);
  State state(const void* address);  // of the piece there
  // Whether an operator that goes in order finds it in memory piece by piece, since it does not fit as a whole.
  bool comes_by_faults(const Operand& operand);
  // All of its storage that has been used, or so many bytes from there.
  bool is_resident(const void* address, std::uint64_t nbytes = 0);
  RankSet tiers_with(const void* address);  // the slower ones that have its contents
  std::uint64_t size_of(const void* address);  // as requested, of all pieces
  void set_least_piece(std::uint64_t bytes);

  // --- operators (per thread, nested): their operands are resident from the return of enter()
  // until exit()
  void enter(const char* name, std::span<const Operand> operands, Work work, Pass pass = Pass::Computes);
  void exit();
  // The page-rounded bytes of these, which an operator needs all at once; remembered if no other has needed more.
  std::uint64_t note_need(const char* name, std::span<const Operand> operands);

  // --- moves
  // Waits; the bytes evicted (0: it was busy, pinned or touched). All of its storage, or so many bytes from there.
  std::uint64_t evict(const void* address, Rank target = 1, std::uint64_t nbytes = 0);
  int fetch(const void* address);  // waits; 0 or errno
  // Copies what is on one slower tier to another, and waits. False: it was not there, is busy, or found no space.
  bool copy(const void* address, Rank source, Rank target, Then then);
  // Starts fetching what there is room for, and making room for what is missing; waits for nothing.
  void prefetch(std::span<const Operand> operands);
  // An external pin: resident, writable and never evicted, until as many unpin() calls. 0, ENOENT (not a block), or why it cannot be read; in a
  // forked child resident at most.
  // All of its storage, or so many bytes from there: of what is in pieces, those that have them.
  int pin(const void* address, std::uint64_t nbytes = 0);
  void unpin(const void* address, std::uint64_t nbytes = 0);
  bool is_pinned_from_outside(const void* address);

  // --- what can be made anew [Note: recipes]
  // Whether what lies there is to have a recipe, and so whether the operator that this thread is in makes such a storage.
  bool wants_recipe(const void* address);
  bool wants_recipes() const { return wants_all_recipes_ || this_operator_stack().makes_anew; }
  // For tests: all that fits has recipes, and by its address one in so many of those is an ingredient; 0: none is.
  void want_all_recipes(bool all, unsigned one_in);
  // A recipe is of a whole storage, and good for those of its pieces that nobody has written to since.
  // False: nobody can make any of it anew from now on, since it moves, or is not its own.
  bool keep_recipe(const void* address);
  Forgotten forget_recipe(const void* address);
  bool has_recipe(const void* address);  // that is good for all of it
  bool is_ingredient(const void* address);  // what reads it is to have its recipe in place of it
  bool guard(const void* address);  // a recipe reads it. False: it cannot, since others have its address and may write there
  void unguard(const void* address);
  // The number of the recipe by which some of it is to be made anew; 0: it is there. Of all of it, or of so many bytes from there.
  std::uint64_t unmade_by(const void* address, std::uint64_t nbytes = 0);
  // What `from`, a storage that nobody else knows, has in place of what is Unmade by this recipe are its contents. It keeps its
  // recipe, or none of `to` does. False: nothing is.
  bool hand_over(const void* from, const void* to, std::uint64_t recipe, bool keeps);
  std::uint64_t unmade() const { return moves_.unmade(); }  // blocks
  void made_anew(std::int64_t ns);  // so long it took, on this thread, and is no part of the operator's own time
  void made_ingredient(std::uint64_t bytes);
  std::int64_t busy_ns();  // a clock that stands still while somebody waits
  const void* storage_at(const void* address);  // the beginning of what lies there

  bool on_fault(const void* address, bool write);  // the SIGSEGV handler; false: not a fault of ours

  // --- budget; 0 = unbounded
  void set_limits(std::uint64_t arena_bytes, std::uint64_t process_bytes);
  void set_machine(std::uint64_t bytes);  // what the process can have at most; 0: not known
  void set_policy(const Policy& policy);  // who is evicted where no schedule says so
  void set_chaos(double rate, std::uint64_t seed);
  void set_watchdog(std::int64_t ns);
  // `pages`: what is clean in memory is also compared with what was written, a random chunk each time that the governor wakes.
  void set_checksum(bool on, bool pages = false);
  // Compares one now; false: there was none. What differs ends the process.
  bool look_at_clean_pages();

  // --- steps and figures. The thread that begins a step is the one whose operators and allocations make its clock.
  // What they return is read at the step's edge itself: all traffic of before it has been added to its kind, so the
  // difference between two edges is what was evicted and fetched between them, by the kinds that the storages then had.
  Counters begin_step(bool record = false);
  Counters end_step(bool completed = true);  // false: it broke off, and shows nothing
  Tape& tape() { return tape_; }
  Schedules& schedules() { return schedules_; }
  Counters counters();  // traffic not yet added to a kind counts for the one that its storage has at the moment
  void reset_peaks();
  // Forgets what the process had outside the arena since the step ended: something passing did, and is over.
  void remeasure_unmanaged();
  // A file has been mapped whose pages are about to come: the kernel can take them back.
  void look_at_data_files();
  // The process's bound keeps so much for a child of ours (0: none yet), or what that holds where it is more. Rather than
  // go over the budget, the arena kills the child.
  void set_aside(std::uint64_t bytes, int process);
  void reset_needs();  // what operators needed so far was another phase's
  void reset_trouble();  // a new session starts with a clean record

  // --- fork (pthread_atfork): see fork.cpp
  void make_before_fork();
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();
  bool in_child() const { return in_child_; }

  void forget(OperatorStack& stack);  // its thread ends
  void check_invariants();  // throws std::logic_error naming the one that is broken

 private:
  static constexpr std::uint64_t kReadPastAnEnd = 256;  // bytes, at most
  bool reads_past_an_end(const void* address);
  BlockId find(const void* p) const { return memory_.owner(p); }
  BlockId find_live(const void* p) const;

  // pieces.cpp
  static constexpr std::uint64_t kPiecesInOrder = 2;  // of each operand, that an operator needs at once
  static constexpr const char* kNoAddressSpace = "the arena's address space is used up";
  static constexpr const char* kTooManyStorages = "too many storages; manage only larger ones (EBBTIDE_MIN_STORAGE)";
  // Visits the blocks that the operand lies in, each with its share of what is moved.
  template <typename Visit>
  void each_piece(const Operand& operand, Visit visit) const;
  Operand operand_at(const void* address, std::uint64_t nbytes) const;
  bool fits(std::uint64_t bytes) const;
  bool is_born_at_once(std::uint64_t nbytes, std::uint64_t each, bool untouched);
  void* allocate_pieces(Lock& lock, std::size_t nbytes, std::uint64_t each, const Shape& shape, bool untouched);
  void bear(Lock& lock, BlockId id, bool has_pages, bool in_operator);
  void touch(BlockId id, bool in_operator, bool by_fault);
  void forget_piece(BlockId id);
  BlockId find_unmade(const void* address, const Block& like, std::uint64_t recipe) const;  // recipes.cpp
  bool make_idle(Lock& lock, BlockId id);
  void release_storage(char* address);

  // arena.cpp
  BlockId make_block(const Shape& shape, std::size_t nbytes, Run place);
  BlockId make_in_place(const Shape& shape, std::size_t nbytes, Rank rank);
  bool settle_in_place(BlockId id, Rank rank);
  Claim wait_for_room(Lock& lock, const Shape& shape);
  std::string no_room(std::uint64_t nbytes, Claim claim) const;
  void release_block(BlockId id);
  bool go_by_faults(std::span<const Operand> operands) const;
  void take_up(OperatorStack& stack, std::size_t first, const Operand& operand);
  void reserve_ahead(std::size_t nbytes, const Shape& shape);
  void pin_operand(OperatorStack& stack, BlockId id, Access access, bool born_here, std::uint64_t moved, std::uint64_t counted);
  void unpin_operand(const Pin& pin);
  void look_at_contents();  // contents.cpp
  bool look_at_clean_pages(Lock& lock);  // clean_pages.cpp
  void remember_need(const char* name, std::uint64_t bytes, std::uint64_t used, std::uint64_t largest);
  void chaos();
  void govern();

  std::uint64_t evict(Lock& lock, BlockId id, Rank target);  // arena_moves.cpp

  // touch.cpp
  void begin_stretch();
  Stretch::Who whose_stretch() const;  // of the calling thread
  [[noreturn]] void unreadable(const Block& b, int error);

  // fork.cpp
  void inherit(bool inherited);
  const char* bring_to_child(BlockId id, const void* address);
  bool on_fault_in_child(const void* address);
  int fetch_in_child(const void* address, std::uint64_t nbytes = 0);

  // counters.cpp
  void flush_traffic(Block& b);
  Counters count() const;  // under the mutex

  const Options options_;
  std::mutex mutex_;
  Areas areas_;  // counts what the process has before there are regions
  FastMemory memory_;
  Tiers tiers_;
  BlockTable blocks_;
  Budget budget_;
  OperatorStacks stacks_;
  Stretch stretch_;
  Recency recency_;
  Tape tape_{mutex_};
  StallClock stalls_{tape_};
  Replay replay_;
  Schedules schedules_{mutex_, replay_};
  Refetches refetches_{blocks_, replay_};
  Mover mover_;
  Moves moves_;
  Victims victims_;
  Room room_;
  Step step_;

  std::condition_variable governor_wakes_;  // early, to stop
  std::thread governor_;
  bool stopping_ = false;
  std::atomic<bool> in_child_ = false;
  std::uint64_t least_piece_ = 0;
  std::uint64_t least_in_pieces_ = ~std::uint64_t{0};  // none of the storages that are in pieces is smaller
  std::uint64_t untouched_ = 0;  // bytes of pieces that nobody has used
  std::uint64_t wholes_ = 0;  // storages in pieces so far
  std::uint64_t recipes_ = 0;  // and recipes
  std::uint64_t accesses_ = 0;  // of operators; the policy may see only some of them
  std::uint64_t serial_ = 0;  // of operators
  double chaos_rate_;
  std::uint64_t chaos_state_;
  std::atomic<bool> wants_all_recipes_ = false;
  std::atomic<unsigned> one_in_is_ingredient_ = 0;
  bool checks_pages_ = false;
  std::uint64_t page_checks_ = 0;
  Counters counters_;  // only what is counted here, and is cumulative
};

template <typename Visit>
void Arena::each_piece(const Operand& operand, Visit visit) const {
  BlockId id = find_live(operand.address);
  if (id == kNoBlock) return;
  if (!blocks_[id].is_piece()) return visit(id, operand.moved);
  if (blocks_[id].before > 0) id = find_live(blocks_[id].address - blocks_[id].before);
  const Block& first = blocks_[id];
  auto offset = static_cast<std::uint64_t>(static_cast<const char*>(operand.address) - first.address);  // of a slice of it
  ByteRange range = operand.range.after(offset).within(0, first.nbytes + first.after);
  if (range.bytes() == 0) return;
  for (const char* at = first.address + range.begin / first.nbytes * first.nbytes;;) {
    if (id = find_live(at); id == kNoBlock) return;
    const Block& b = blocks_[id];
    std::uint64_t part = range.within(b.before, b.before + b.nbytes).bytes();
    bool last = b.before + b.nbytes >= range.end;
    at = b.address + b.paged_bytes;
    if (part > 0) visit(id, range.share_of(operand.moved, part));
    if (last) return;
  }
}

}  // namespace ebbtide
