// The arena owns the pages of the training storages; their addresses never change.
//
// [Note: invariants]  Checked by check_invariants(), after every operation of the stress tests.
//   I1  reserved bytes = pages of resident blocks and of dead ones that drain + cached pages + pages being read into
//   I2  reserved bytes <= the limit, unless over_budget says otherwise (or the limit was lowered and evictions are under way)
//   I3  a block's state tells its protection and where its bytes are ([Note: what a state costs])
//   I4  a block whose transfer is busy keeps its place in the address space, hence in the file, until that has drained
//   I5  nobody touches a block's memory while holding the mutex: the fault handler takes it
//   I6  whatever the fault handler can reach neither allocates nor frees
//
// [Note: verbs]  allocate() and release() are of storages, enter() and exit() of operators, pin() and unpin() of addresses,
// evict() and fetch() of contents. A block ends with free_pages() where it has pages, else with free_address().
// Room is what a claim can take of the budget; reserved bytes are those that were claimed.
//
// [Note: one mutex]  All state is behind one mutex; system calls that move pages run under it (about 25 us a huge
// page beside threads that compute), reads and writes of the spill file do not. A thread that waits carries out queued
// transfers itself, so waiting never depends on another thread being alive (a forked child has none).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "block_table.hpp"
#include "counters.hpp"
#include "decider.hpp"
#include "operators.hpp"
#include "recording.hpp"
#include "region.hpp"
#include "replay.hpp"
#include "tape.hpp"
#include "types.hpp"
#include "unmanaged.hpp"
#include "userfault.hpp"

namespace ebbtide {

// Where a test may interfere with a transfer.
enum class Point : std::uint8_t { Queued, BeforeChunk, AfterChunk, Evicting };

struct Options {
  std::vector<std::string> spill_directories;
  unsigned io_threads = 2;
  std::int64_t watchdog_ns = 30'000'000'000;
  double chaos_rate = 0.0;       // chance, at every operator and allocation, of evicting a random block
  std::uint64_t chaos_seed = 0;
  std::size_t huge_region_bytes = std::size_t{1} << 40;
  std::size_t small_region_bytes = std::size_t{1} << 38;
  bool userfault = false;        // serve the kernel's own accesses too, where that is permitted [Note: userfaultfd]
  std::uint64_t most_areas = 0;  // memory areas of the process; 0: vm.max_map_count
  void (*hook)(Point, BlockId, void*) = nullptr;  // called without the mutex, except at Evicting
  void* hook_argument = nullptr;
  void (*on_governor_wake)() = nullptr;  // called by the governor about every 10 ms, without the mutex
};

class Arena {
 public:
  explicit Arena(const Options& options);
  ~Arena();  // tests only; a training process never destroys its arena
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // --- storages
  void* allocate(std::size_t nbytes);  // waits for room; throws ArenaError when the spill file cannot take more
  void release(void* address);
  bool serves_system_calls() const { return userfault_ != nullptr; }
  bool contains(const void* p) const { return huge_.contains(p) || small_.contains(p); }
  void classify(const void* address, Kind kind);
  State state(const void* address);
  std::uint64_t size_of(const void* address);  // as requested
  std::uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }

  // --- operators (per thread, nested): their operands are resident from the return of enter()
  // until exit()
  void enter(const char* name, std::span<const Operand> operands, Work work);
  void exit();
  // The page-rounded bytes of these, which an operator needs all at once; remembered if no other has needed more.
  std::uint64_t note_need(const char* name, std::span<const Operand> operands);

  // --- moves
  std::uint64_t evict(const void* address);  // waits; the bytes evicted (0: it was busy, pinned or touched)
  int fetch(const void* address);            // waits; 0 or errno
  // Starts fetching what there is room for, and making room for what is missing; waits for nothing.
  void prefetch(std::span<const Operand> operands);
  // An external pin: resident, writable and never evicted, until as many unpin() calls. 0, ENOENT (not a block), or why it cannot be read; in a
  // forked child resident at most.
  int pin(const void* address);
  void unpin(const void* address);
  bool is_pinned_from_outside(const void* address);
  bool on_fault(const void* address, bool write);  // the SIGSEGV handler; false: not a fault of ours

  // --- budget; 0 = unbounded
  void set_limits(std::uint64_t arena_bytes, std::uint64_t process_bytes);
  void set_policy(const Policy& policy);  // who is evicted where no schedule says so
  void set_chaos(double rate, std::uint64_t seed);
  void set_watchdog(std::int64_t ns);
  void set_checksum(bool on) { checksum_ = on; }

  // --- steps and figures. The thread that begins a step is the one whose operators and allocations make its clock.
  // What they return is read at the step's edge itself: all traffic of before it has been added to its kind, so the
  // difference between two edges is what was evicted and fetched between them, by the kinds that the storages then had.
  Counters begin_step(bool record = false);
  Counters end_step(bool completed = true);  // false: it broke off, and shows nothing
  Tape& tape() { return tape_; }
  // Follow this schedule in every step that allocates like it. Returns its number.
  std::size_t load_schedule(Schedule schedule);
  void unload_schedules();
  // The schedule that the last step followed to its end.
  std::optional<std::size_t> followed();
  Counters counters();  // traffic not yet added to a kind counts for the one that its storage has at the moment
  void reset_peaks();
  // Forgets what the process had outside the arena since the step ended: something passing did, and is over.
  void remeasure_unmanaged();
  // The process's bound keeps so much for a child of ours (0: none yet), or what that holds where it is more. Rather than
  // go over the budget, the arena kills the child.
  void set_aside(std::uint64_t bytes, int process);
  void reset_needs();    // what operators needed so far was another phase's
  void reset_trouble();  // a new session starts with a clean record

  // --- fork (pthread_atfork): see fork.cpp
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();
  bool in_child() const { return in_child_; }

  void forget(OperatorStack& stack);  // its thread ends
  void check_invariants();  // throws std::logic_error naming the one that is broken

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class Outcome { Progress, Stuck, TimedOut, SpillFailed };

  Region& region(const Shape& shape) { return shape.page == kHugePage ? huge_ : small_; }
  Region& region(const Block& b) { return region(b.shape); }
  const Region& region(const Block& b) const { return b.shape.page == kHugePage ? huge_ : small_; }
  BlockId find(const void* p);
  BlockId find_live(const void* p);

  // room.cpp: everything here is called under the mutex; make_room, and so claim, unlock it while they wait
  bool try_claim(Shape shape);
  bool claim(Lock& lock, Shape shape);  // false: the spill file takes no more
  void claim_over_budget(Shape shape, Outcome why);
  bool end_aside();
  Outcome make_room(Lock& lock, Shape shape);
  std::uint64_t cached_bytes() const { return huge_.cached_bytes() + small_.cached_bytes(); }
  std::uint64_t fresh_bytes(const Shape& shape);
  std::uint64_t release_cached(std::uint64_t bytes, const Shape& shape);
  void trim();
  void evict_ahead();
  void evict_after_use(BlockId id);
  bool in_use(const Block& b) const;
  void account(std::int64_t bytes);  // reserved bytes change
  void account_resident(std::int64_t bytes);  // so do those of them under live storages
  bool measure_unmanaged();
  void measure_aside();
  void govern();

  // victims.cpp
  std::uint64_t start_evictions(std::uint64_t needed, Shield up_to);
  std::uint64_t look_at_all(std::uint64_t needed, Shield up_to);
  std::uint64_t start_victim(const Candidate& victim);
  std::uint64_t age(BlockId id) const;
  bool may_move(const Block& b) const;
  bool goes_round(const Block& b) const;
  bool evictable(const Block& b) const;

  // areas.cpp
  static std::uint64_t areas_for_arena(std::uint64_t most);
  std::uint64_t areas() const { return huge_.areas() + small_.areas(); }
  bool areas_run_short() const;
  bool areas_let_evict(const Block& b) const;
  bool claim_for_fetch(const Block& b) { return areas() < most_areas_ && try_claim(b.shape); }
  void spare_areas();
  void clear_stretch(Region& r);
  bool wait_for_areas(Lock& lock, std::int64_t since);

  // step.cpp: what a step leaves on the tape, and the schedule it follows
  void tick(const char* name, std::size_t depth);
  void list_storages();
  void born(BlockId id, bool in_operator);
  void died(BlockId id);
  void carry_out(const Command& command);
  void start_prefetches();
  void drop_prefetches();
  void request_refetch(BlockId id);
  void queue_refetches();
  std::int64_t stalled_ns() const;

  // moves.cpp
  bool start_evict(BlockId id);
  void start_read(BlockId id, bool urgent = false);  // the pages have been claimed
  void evict_clean(BlockId id);
  void cancel(BlockId id);
  void make_dirty(BlockId id);
  int ensure_resident(Lock& lock, BlockId id);
  void enqueue(BlockId id, bool urgent = false);
  void dequeue(BlockId id);
  BlockId next_transfer(bool prefer_out) const;
  bool carry_out_chunk(Lock& lock, bool prefer_out);
  int transfer_chunk(const Block& b, std::uint32_t chunk, bool out);
  int read_chunk(Region& r, Run places, std::uint64_t bytes);
  void complete(BlockId id);
  void complete_read(BlockId id, int error);
  void changed();
  void wait(Lock& lock, bool prefer_out);
  void io_loop(unsigned index);
  void chaos();

  // arena.cpp
  void decommit(const Block& b);
  void free_pages(BlockId id);
  void free_address(BlockId id);
  void flush_traffic(Block& b);
  Counters reading() const;  // under the mutex
  void reserve_spill(std::size_t nbytes, const Shape& shape);
  [[noreturn]] void spill_full(std::size_t nbytes);
  void pin_operand(OperatorStack& stack, BlockId id, Access access, bool born_here, std::uint64_t moved);
  void unpin_operand(const Pin& pin);
  void remember_need(const char* name, std::uint64_t bytes, std::uint64_t used, std::uint64_t largest);

  // touch.cpp
  void begin_stretch();
  void count_return(Block& b);
  [[noreturn]] void unreadable(const Block& b, int error);

  // fork.cpp
  void inherit(bool inherited);
  void file_changes(BlockId id);
  const char* bring_to_child(BlockId id, const void* address);
  bool on_fault_in_child(const void* address);
  int fetch_in_child(const void* address);

  const Options options_;
  std::unique_ptr<Userfault> userfault_;  // null: faults come as signals
  const std::uint64_t most_areas_;   // of the regions; before them, so that theirs are not counted twice
  Region huge_;
  Region small_;
  BlockTable blocks_;
  Reservation candidate_memory_;
  std::span<Candidate> candidates_;
  Reservation file_version_memory_;
  std::span<std::atomic<std::uint32_t>> file_versions_;  // by block; forked children see them too [Note: children]
  std::span<Candidate> ready_;       // of them, those who are evicted next
  std::uint64_t ready_since_ = 0;    // the clock of recency when they were collected
  bool ready_for_schedule_ = false;  // and whether a schedule told their age
  std::size_t looks_unused_ = 0;     // victims that the last look at all is still good for
  Reservation refetch_memory_;
  std::span<BlockId> refetches_;          // blocks whose refetch is pending, or was
  std::size_t refetch_count_ = 0;

  std::mutex mutex_;
  std::condition_variable work_;     // a transfer was queued, or the arena stops
  std::condition_variable governor_;  // wakes it early, to stop
  std::condition_variable changed_;  // room, residency or budget may have changed
  std::vector<std::thread> threads_;
  std::vector<OperatorStack*> stacks_;
  bool stopping_ = false;
  std::atomic<bool> in_child_ = false;
  bool quiet_ = false;               // a fork is near: no chunk may start
  unsigned chunks_in_flight_ = 0;

  BlockId queue_head_[2] = {kNoBlock, kNoBlock};  // [0] fetches, [1] evictions
  BlockId queue_tail_[2] = {kNoBlock, kNoBlock};

  std::atomic<std::uint64_t> limit_ = 0;          // the lower of the arena's own and what the process's bound leaves it
  std::uint64_t arena_limit_ = 0;
  std::uint64_t process_limit_ = 0;
  Unmanaged unmanaged_;
  std::int64_t unmanaged_measured_ns_ = 0;
  std::uint64_t set_aside_ = 0;      // for another process: what was asked for, or what it holds
  std::uint64_t aside_bytes_ = 0;
  int aside_process_ = 0;
  std::uint64_t live_ = 0, resident_ = 0, reserved_ = 0;
  std::uint64_t evicting_ = 0;       // bytes of blocks in state Writing whose pages go when they are written
  unsigned busy_transfers_ = 0;
  std::uint64_t changes_ = 0;
  Policy policy_ = kDemand;
  std::uint64_t accesses_ = 0;       // of operators; the policy may see only some of them
  std::uint64_t stamp_ = 0;          // the clock of recency
  std::uint64_t tick_stamp_ = 0;     // its value when the current operator began
  std::uint64_t serial_ = 0;         // of operators
  bool pressure_ = false;            // an allocation or fetch had to wait for room lately
  bool room_waited_in_step_ = false;
  std::int64_t progress_ns_ = 0;     // when a chunk was last finished
  std::uint64_t areas_merged_at_ = 0;  // how many areas the last merging left, or fewer
  std::uint64_t clear_from_ = most_areas_;  // with as many areas the next stretch is cleared
  Slot cleared_up_to_[2] = {0, 0};   // huge pages, small ones
  bool areas_refused_ = false;       // the last look met storages that are kept for want of areas
  std::uint64_t write_failures_ = 0;
  int spill_error_ = 0;
  const SpillFile* spill_failed_ = nullptr;
  char trouble_[256] = "";            // the first time over budget, in words; a buffer, since the fault handler may write it
  double chaos_rate_;
  std::uint64_t chaos_state_;
  std::int64_t watchdog_ns_;
  std::atomic<bool> checksum_ = true;  // of what is written, compared with what is read
  std::atomic<bool> other_bytes_ = false;  // they differed once, and that was said

  Tape tape_{mutex_};
  std::int64_t stalled_before_step_ns_ = 0;
  std::uint64_t serials_ = 0;        // allocations so far
  Replay replay_;
  std::vector<Bound> prefetches_;    // of this step, in the order in which they are needed
  std::uint64_t came_back_ = 0;      // bytes of all fetches, for which copy_ns[0] was needed
  std::size_t next_prefetch_ = 0;    // it and those after it wait for room
  unsigned waiting_for_room_ = 0;    // threads; prefetches stand back for them

  struct StallClock {
    unsigned waiting = 0;
    std::int64_t since = 0;
    Stall cause = Stall::Room;
    std::uint32_t storage = kNever;  // in the recording
  } stall_clock_;
  class StallScope;

  struct Stretch {
    std::uint64_t number = 1;
    std::uint64_t bytes = 0;  // of what it has touched
    bool thrashes = false;    // what it has touched is kept
  } stretch_;  // [Note: stretches]

  Counters counters_;                // only the cumulative parts
  std::int64_t reserved_since_ns_ = 0, resident_since_ns_ = 0;
  std::int64_t peaks_reset_ns_ = 0;
};

}  // namespace ebbtide
