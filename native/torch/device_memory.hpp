// Storages of an accelerator. One is moved by giving its StorageImpl other memory between two operators.
//
// [Note: another pointer]  ATen asks a storage for its address at each operator, and operators are announced here. So an address
// need not last: a storage that leaves gives its memory back to PyTorch's allocator, and one that returns gets other memory. A
// storage that is here is an ordinary one of PyTorch's, with the memory that PyTorch gave it; nothing of it is replaced.
//
// [Note: order]  The host waits for nothing. What it asks for here is done in the order of streams:
//   out     begins when the stream that used the storage last has come so far; the memory is given back when it has been copied:
//           its own stream is told to wait for the copy, and then PyTorch may give it to whoever comes next on that stream
//   back    begins when the stream of the new memory has come so far (it may have been somebody's), and when the copy out has ended;
//           an operator's stream waits for it before the first operator that needs it
// What lies in the file comes back to host memory first: ahead of need by threads, and where an operator needs it, the host waits.
// A copy out and one back of the same size need no memory of PyTorch's: the memory of the one is handed to the other.
//
// [Note: who may move]  A storage moves only if PyTorch's allocator made its memory for it alone, and nobody can reach it unseen. So
// it stays while an operator uses it; if more
// than one stream has used it; while a graph is captured; and until the step ends, if somebody asked for its address. What is away
// has an address that nobody may use. PyTorch 2.13 tells of each first access to a managed storage that may write; kernels of its own
// operators apart, that is somebody who calls none. He gets the contents, and the storage stays until the step ends, for he may keep
// the address; its host copy, and what a recipe says of it, are no longer good. Accesses that only read are not told of, nor refused:
// PyTorch itself asks for addresses in order to compare them. Before 2.13 nothing is told, and no host copy is trusted.
//
// [Note: made anew here]  A storage with a recipe leaves without a copy. Its operators run on the stream that it belongs to, and it gets
// the memory that they made: an operator of another stream waits for that one. What nobody announces could write to what a recipe
// reads, so there are recipes only where PyTorch tells of that, and any operator that is not PyTorch's counts as if it wrote.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/intrusive_ptr.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../core/block_table.hpp"
#include "../core/counters.hpp"
#include "../core/decider.hpp"
#include "../core/refetches.hpp"
#include "../core/replay.hpp"
#include "../core/tape.hpp"
#include "device_copies.hpp"
#include "host_copies.hpp"
#include "recipe_memory.hpp"
#include "watch.hpp"

namespace ebbtide {

struct DeviceSettings {
  std::string device;  // "cuda:0"
  std::uint64_t fast_bytes = 0;  // for all tensors there; 0: no bound
  std::uint64_t host_bytes = 0;  // pinned memory, at most
  std::vector<std::string> spill_dirs;  // for what finds none; none: then it stays
  unsigned io_threads = 0;
  std::uint64_t min_bytes = 0;  // smaller storages are not managed
  std::string policy = "demand";
  double chaos_rate = 0.0;
  std::uint64_t chaos_seed = 0;
};

class DeviceMemory final : public ScheduledWatch, public RecipeMemory {
 public:
  explicit DeviceMemory(c10::Device device);

  // A session starts, or a recorder: with a clean record. Smaller storages that an earlier one managed still are.
  void start(const DeviceSettings& asked);

  void set_limit(std::uint64_t bytes);
  void set_policy(const Policy& policy);
  void set_chaos(double rate, std::uint64_t seed);
  c10::Device device() const { return device_; }
  c10::DispatchKey dispatch_key() const { return c10::computeDispatchKey(std::nullopt, std::nullopt, device_); }
  struct Left {  // what cannot come back
    std::uint64_t nbytes = 0;
    std::string failure;  // to read some of it; "": the device has no room
  };
  // All that is away comes back, as far as there is memory, and nothing moves from then on. Host memory is given back where
  // nothing lies there any more.
  Left stop();
  // While a graph is captured, say, nothing moves; all that is away comes back first.
  void suspend(bool suspends, bool for_a_graph = false);

  // Somebody has the address of a storage: it comes back, and stays. `for_good`: nobody tells when he is done with it.
  // Returns whether it stayed anyway.
  bool pin(c10::StorageImpl& storage, bool for_good);
  // The address is used no more. It may have other memory by now.
  void unpin(c10::StorageImpl& storage);
  // It comes back, and stays until the session ends.
  void keep(c10::StorageImpl& storage);
  bool is_here(c10::StorageImpl& storage);
  std::uint64_t evict(c10::StorageImpl& storage);

  // A result that is seen for the first time is born now.
  void find_result(c10::StorageImpl& storage);
  // What an operator within this thread's last one made empty is that one's.
  void note_births();

  bool on() const override { return !in_child_; }
  const void* find(c10::StorageImpl& storage) override;
  void enter(const char* name, std::span<const Operand> operands, Work work, Pass pass) override;
  void exit() override;
  std::uint64_t note_need(const char* name, std::span<const Operand> operands) override;
  void prefetch(std::span<const Operand> operands) override;
  Counters begin_step(bool record) override;
  Counters end_step(bool completed) override;
  void classify(const void* storage, Kind kind) override;
  Tape& tape() override { return tape_; }

  Schedules& schedules() override { return schedules_; }
  Counters counters() override;
  void reset_peaks() override;

  bool knows_by_object() const override { return true; }
  const void* place_of(c10::StorageImpl& storage) override { return find(storage); }
  const void* storage_at(const void* place) override { return place; }
  std::shared_ptr<const void> keep_alive(c10::StorageImpl& storage, const void*) override {
    auto object = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage);
    return {&storage, [object](const void*) {}};
  }
  std::span<const char> reach_of(const at::Tensor&, const void* place) override { return {static_cast<const char*>(place), 1}; }
  std::uint64_t size_of(const void* address) override;
  std::size_t least_managed() const override { return min_bytes_; }
  bool may_be_read_again(const void* place) override;
  c10::Storage copy_of(const c10::Storage& storage) override;
  std::uint32_t checksum_of(const void* address) override;
  bool wants_recipes() override;
  bool wants_recipe(const void* address) override;
  void want_all_recipes(bool all, unsigned one_in) override;
  bool keep_recipe(const void* address) override;
  Forgotten forget_recipe(const void* address) override;
  bool has_recipe(const void* address) override;
  bool is_ingredient(const void* address) override;
  bool guard(const void* address) override;
  void unguard(const void* address) override;
  bool is_guarded(const void* address) override;
  bool any_unmade() override { return unmade_ != 0; }
  std::uint64_t unmade_by(const void* address, std::uint64_t nbytes) override;
  bool hand_over(const void* from, const void* to, std::uint64_t recipe, bool keeps) override;
  std::int64_t busy_ns() override { return 0; }
  void made_anew(std::int64_t) override {}  // the device's own times are counted
  void made_ingredient(std::uint64_t bytes) override;
  std::optional<c10::Stream> begin_making(const void* address, bool again) override;
  bool refuse(const void* address, const std::string& name) override;
  bool lacked_memory() override { return std::exchange(this_stack().lacked_memory, false); }
  std::vector<const void*> ended() override;

 private:
  static constexpr Rank kHost = 1, kFile = 2;

  using Lock = std::lock_guard<std::mutex>;
  using Strong = c10::intrusive_ptr<c10::StorageImpl>;

  // What a block needs on a device, by its number.
  struct Place {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{Strong()};  // keeps the object and not what it holds
    c10::StorageImpl* key = nullptr;  // the object's address
    const void* memory = nullptr;  // what its pointer was when it was last looked at
    std::optional<c10::Stream> stream;  // whose work uses it
    bool is_its_allocation = false;  // that stream's memory it is, for all we know
    bool is_new = false;  // what made it goes on to use it, which is told with the operator's end
    bool roams = false;  // other streams have used it, too
    bool is_guarded = false;  // PyTorch calls before somebody may write to it
    bool is_pinned = false;  // somebody has its address, until the step ends
    bool is_pinned_for_good = false;
    bool is_kept = false;  // until the session ends
    bool was_pinned = false;  // in an earlier step
    bool arrives = false;  // its stream has not been told to wait for the copy back
    bool is_made = false;  // anew, by its stream: others have not been told to wait for that
    HostCopy* host = nullptr;  // its copy there, while it is as good
  };

  // Memory that is given back once the copy out of it has ended.
  struct Eviction {
    c10::DataPtr memory;
    std::uint64_t nbytes;
    c10::Stream stream;
    bool is_its_allocation;
    c10::Event end;
  };

  struct OperatorPin {
    BlockId id;
    std::uint32_t generation;
    std::uint32_t recorded, from_tick;
    Access access;
    bool born_here;
    std::uint64_t moved;
  };
  struct Running {
    std::size_t first_pin;
    bool is_pytorchs;
  };
  struct Making {
    c10::Event begin, end;
  };
  // One with a recipe, or that was read by one. The object is not given back while it is known here.
  struct Ended {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* key;
  };
  struct Mark {
    enum What : std::uint8_t { Tick, StallBegins, StallEnds };
    c10::Event event;
    What what;
  };
  struct TimedCopy {
    std::uint32_t storage, tick;
    Rank source, target;
    std::int64_t asked_ns;
    c10::Event begin, end;
  };
  struct Stack {
    std::vector<Running> operators;
    std::vector<OperatorPin> pins;
    std::vector<Bound> unseen;  // found since the last operator began or ended
    bool lacked_memory = false;
    bool makes_anew = false;  // the operator that began last makes what is to have a recipe
  };
  static Stack& this_stack();
  friend void is_reached_unseen(c10::StorageImpl* storage);
  void reached_unseen(c10::StorageImpl& storage);

  // --- who is there
  BlockId find_or_add(c10::StorageImpl& storage);
  BlockId known(const void* key) const;
  void add_births(Stack& stack, bool in_operator);
  Strong strong(BlockId id) const;
  void forget(BlockId id);
  void sweep(bool all);
  void call_me(BlockId id, c10::StorageImpl& storage);
  void call_me_no_more(BlockId id, c10::StorageImpl& storage);
  void written(BlockId id);
  bool is_operand(BlockId id);

  // --- moves
  bool evictable(BlockId id) const;
  bool is_this_streams(BlockId id) const;
  bool start_out(BlockId id, Rank target = kHost);
  bool start_back(BlockId id,
                  bool waits);  // false: no room now, or not yet. Where it waits, room is made, or the budget exceeded
  HostCopy* host_copy(std::uint64_t nbytes);
  bool comes_to_host(BlockId id, bool waits);
  bool start_spills(std::uint64_t needed);
  std::uint64_t idle(BlockId id) const;
  void bring(BlockId id, const char* name);
  void refuse_to(BlockId id, const std::string& text);
  void refuse_no_more(BlockId id);
  void arrive(BlockId id, const c10::Stream& stream);
  c10::DataPtr memory_for(std::uint64_t nbytes, const c10::Stream& stream, std::optional<c10::Event>& after, bool waits);
  void give_back_oldest(bool by_waiting);
  void give_back_ended();
  std::uint64_t start_evictions(std::uint64_t needed);
  bool make_room(std::uint64_t nbytes);
  void trim();
  void chaos();

  // --- the step
  void follow_thread();
  void begin_schedule();
  void carry_out_commands();
  void queue_prefetch(BlockId id);
  bool is_due(Bound bound) const;  // to be prefetched
  void start_prefetches();
  void drop_prefetches();
  void note_time(const c10::Stream& stream, Mark::What what);
  void read_makings();
  void read_times(std::int64_t& stalled_ns, std::int64_t& now);
  std::uint64_t used() const { return resident_ + evicting_bytes_; }
  Counters count() const;

  const c10::Device device_;
  std::mutex mutex_;  // guards all below
  std::uint64_t min_bytes_ = 0;
  c10::Allocator& pytorchs_;
  DeviceCopies copies_;
  HostCopies host_;
  BlockTable blocks_;
  std::vector<Place> places_;  // by block
  std::unordered_map<const void*, BlockId> ids_;
  std::deque<Eviction> evicting_;
  Tape tape_{mutex_};
  Replay replay_;
  Schedules schedules_{mutex_, replay_};
  Refetches refetches_;
  Policy policy_ = kDemand;
  std::vector<Candidate> candidates_;
  std::vector<Bound> prefetches_;
  std::uint64_t host_lacked_ = 0;  // for one storage
  std::size_t swept_ = 0;

  std::uint64_t limit_ = 0;
  std::uint64_t resident_ = 0, evicting_bytes_ = 0, live_ = 0;
  std::uint64_t resident_peak_ = 0, used_peak_ = 0, live_peak_ = 0, step_live_peak_ = 0;
  std::uint64_t largest_birth_ = 0;  // of this step and the last
  std::uint64_t largest_birth_now_ = 0;
  std::uint64_t now_ = 0, serials_ = 0;
  std::uint64_t chaos_state_ = 0;
  double chaos_rate_ = 0.0;
  bool suspended_ = false, captures_ = false;
  std::atomic<bool> in_child_ = false;
  std::uint32_t step_thread_ = 0;
  Counters counters_;  // only what is counted here, and is cumulative
  double ns_per_byte_ = 0.0;  // of copies back, as measured

  std::vector<Mark> marks_;  // of a recorded step: when the device came to each tick
  std::int64_t began_ns_ = 0;  // the first of them
  std::vector<TimedCopy> timed_;  // and its copies

  // What is made anew.
  std::atomic<std::uint64_t> unmade_ = 0;  // blocks
  std::uint64_t recipes_ = 0;
  std::atomic<bool> wants_all_recipes_ = false;
  unsigned one_in_is_ingredient_ = 0;
  std::vector<Ended> ended_, forgotten_;  // yet to be told, and those told last
  std::optional<c10::Event> making_since_;
  std::deque<Making> makings_;  // whose times are yet to be read
};

// Null before there is one. It stays until the process ends.
DeviceMemory* the_device_memory();
DeviceMemory& make_device_memory(const DeviceSettings& asked);

}  // namespace ebbtide
