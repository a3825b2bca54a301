#include "device_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "births.hpp"
#include "recipe.hpp"
#include "recipes.hpp"

namespace ebbtide {

namespace {

constexpr std::uint64_t kUnit = 512;  // PyTorch's allocators round up to it
constexpr std::size_t kSwept = 8;     // blocks that are looked at with each operator, whether they still live
constexpr const char* kAway =
    "ebbtide: code that calls no operator of PyTorch's reached a tensor whose contents are on the host now. Ask for the tensor's "
    "data_ptr() in Python before, which brings it back, or run the script with EBBTIDE_DISABLE=1";

std::uint64_t paged(std::uint64_t nbytes) { return round_up(nbytes, kUnit); }

// Where nothing is, for as long as any tensor: an address of its own for each block that is away.
char* nowhere(BlockId id) {
  static const Reservation* reserved = new Reservation(std::size_t{1} << 40, kSmallPage, PROT_NONE);
  return reserved->begin() + id * kSmallPage;
}

// [Note: what PyTorch tells]  Since 2.13 a storage can be told to call somebody before the first access that may write, and to
// refuse accesses, and be told the opposite. Older ones lack one of these, and then none is used.
template <typename Storage>
constexpr bool tells = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
  storage.clear_materializer();
};

template <typename Storage>
void refuse_access(Storage& storage, const std::string& text) {
  if constexpr (tells<Storage>) storage.release_data_and_set_meta_custom_data_ptr_error_msg_(text);
}

template <typename Storage>
void allow_access(Storage& storage) {
  if constexpr (tells<Storage>) storage.clear_data_ptr_access_error_msg_();
}

template <typename Storage>
bool is_lazy(Storage& storage) {  // it is somebody's copy on write
  if constexpr (tells<Storage>) return storage.has_materializer();
  return false;
}

template <typename Storage>
void call_before_write(Storage& storage, void (*call)(c10::StorageImpl*)) {
  if constexpr (tells<Storage>) {
    if (call == nullptr) {
      storage.clear_materializer();
    } else if (!storage.has_materializer()) {
      storage.set_materializer(call);
    }
  }
}

// Memory that a copy back may still write to. Where its storage dies before anybody needed it, PyTorch gives the memory to the next
// one on that stream, which has to wait.
struct Arriving {
  c10::DataPtr memory;
  c10::Event end;
  c10::Stream stream;
};

void give_back_arriving(void* context) {
  std::unique_ptr<Arriving> arriving(static_cast<Arriving*>(context));
  arriving->end.block(arriving->stream);
}

bool is_arriving(const c10::DataPtr& memory) { return memory.get_deleter() == &give_back_arriving; }

// Null where it is ordinary memory.
std::unique_ptr<Arriving> take_arriving(c10::DataPtr& memory) {
  if (!is_arriving(memory)) return nullptr;
  return std::unique_ptr<Arriving>(static_cast<Arriving*>(memory.release_context()));
}

// While contents are on their way to the device.
class StaysInMemory {
 public:
  explicit StaysInMemory(HostCopy& copy) : copy_(copy) { copy.stays = true; }
  ~StaysInMemory() { copy_.stays = false; }
  StaysInMemory(const StaysInMemory&) = delete;
  StaysInMemory& operator=(const StaysInMemory&) = delete;

 private:
  HostCopy& copy_;
};

DeviceMemory* memory = nullptr;

}  // namespace

// PyTorch calls it for a storage whose host copy is trusted, from whichever thread. It forgets the call itself. An operator may
// write to what its schema says it reads, or only ask in that way.
void is_written_unseen(c10::StorageImpl* storage) {
  {
    DeviceMemory::Lock lock(memory->mutex_);
    BlockId id = memory->known(storage);
    if (id == kNoBlock) return;
    memory->written(id);
    memory->places_[id].is_guarded = false;
    const Block& b = memory->blocks_[id];
    if (b.pins != 0) return;  // its operator was looked at before [prepare_for]
    memory->places_[id].is_pinned = true;  // who calls no operator may keep the address
    if (b.recipe == 0 && b.guards == 0) return;
  }
  bool before = std::exchange(leaves_references, true);
  give_away(storage);
  leaves_references = before;
}

DeviceMemory* the_device_memory() { return memory; }

DeviceMemory& make_device_memory(const DeviceSettings& asked) {
  c10::Device device(asked.device);
  if (memory != nullptr && memory->device() != device) {
    throw std::runtime_error("the first session of this process had " + memory->device().str() +
                             ", which it stays with: start another process for " + asked.device);
  }
  const Policy* policy = find_policy(asked.policy);
  if (policy == nullptr) throw std::invalid_argument("no such policy: " + asked.policy);
  if (memory == nullptr) {
    memory = new DeviceMemory(device);
    set_watch(memory);
  }
  memory->start(asked);
  memory->set_policy(*policy);
  memory->set_chaos(asked.chaos_rate, asked.chaos_seed);
  memory->set_limit(asked.fast_bytes);
  memory->suspend(false);
  return *memory;
}

DeviceMemory::DeviceMemory(c10::Device device)
    : device_(device),
      pytorchs_(*c10::GetAllocator(device.type())),
      copies_(device),
      host_(device.type()),
      replay_(blocks_, kFile),
      refetches_(blocks_, replay_) {
  counters_.tier_written = counters_.tier_read = {0};
  pthread_atfork(nullptr, nullptr, [] { memory->in_child_ = true; });  // a device is its parent's
}

DeviceMemory::Stack& DeviceMemory::this_stack() {
  static thread_local Stack stack;
  return stack;
}

void DeviceMemory::start(const DeviceSettings& asked) {
  Lock lock(mutex_);
  min_bytes_ = asked.min_bytes;
  host_.set_limit(asked.host_bytes);
  host_.open(asked.spill_dirs, asked.io_threads);
  host_lacked_ = 0;
  counters_.over_budget = false;
  counters_.message.clear();
  counters_.largest_operator_bytes = 0;
}

void DeviceMemory::set_limit(std::uint64_t bytes) {
  Lock lock(mutex_);
  limit_ = bytes;
  if (std::uint64_t most = std::max(step_live_peak_, live_); limit_ > 0 && most > limit_) host_.prepare(most - limit_);
  if (limit_ > 0 && used() > limit_) make_room(0);
}

void DeviceMemory::set_policy(const Policy& policy) {
  Lock lock(mutex_);
  policy_ = policy;
}

void DeviceMemory::set_chaos(double rate, std::uint64_t seed) {
  Lock lock(mutex_);
  chaos_rate_ = rate;
  chaos_state_ = seed * 2 + 1;
}

// --- who is there

BlockId DeviceMemory::known(const void* key) const {
  auto found = ids_.find(key);
  return found == ids_.end() ? kNoBlock : found->second;
}

const void* DeviceMemory::find(c10::StorageImpl& storage) {
  if (in_child_ || storage.device() != device_) return nullptr;
  Lock lock(mutex_);
  BlockId id = find_or_add(storage);
  if (id == kNoBlock) return nullptr;
  Stack& mine = this_stack();
  if (!mine.unseen.empty() && mine.unseen.back().id == id) places_[id].is_new = true;
  return &storage;
}

BlockId DeviceMemory::find_or_add(c10::StorageImpl& storage) {
  const void* at = storage._mutable_data_ptr_no_checks().get();
  BlockId id = known(&storage);
  if (id != kNoBlock) {
    Block& b = blocks_[id];
    if (places_[id].memory == at && b.nbytes == storage.nbytes()) return id;
    // Somebody gave it other memory. If it was away, what it had is in no memory any more, as he wanted.
    allow_access(storage);
    call_me_no_more(id, storage);
    forget(id);
  }
  if (at == nullptr || storage.nbytes() < min_bytes_ || is_lazy(storage)) return kNoBlock;
  // Other memory is somebody else's, too: another library's, another process's, or the storage's that this one is a slice of.
  if (storage._mutable_data_ptr_no_checks().get_deleter() != pytorchs_.raw_deleter()) return kNoBlock;
  id = blocks_.create();
  if (id == kNoBlock) return kNoBlock;
  if (places_.size() <= id) places_.resize(id + 1);
  Place& p = places_[id];
  p = Place();
  p.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(Strong::reclaim_copy(&storage));
  p.key = &storage;
  p.memory = at;
  p.stream = copies_.current();
  Block& b = blocks_[id];
  b.nbytes = storage.nbytes();
  b.paged_bytes = paged(b.nbytes);
  b.state = State::Dirty;
  b.serial = ++serials_;
  b.last_use = now_;
  if (tape_.in_step()) b.kind = Kind::Activation;
  ids_.emplace(&storage, id);
  blocks_.add_live(id);
  resident_ += b.paged_bytes;
  live_ += b.nbytes;
  resident_peak_ = std::max(resident_peak_, resident_);
  used_peak_ = std::max(used_peak_, used());
  live_peak_ = std::max(live_peak_, live_);
  step_live_peak_ = std::max(step_live_peak_, live_);
  largest_birth_now_ = std::max(largest_birth_now_, b.paged_bytes);
  this_stack().unseen.push_back({id, b.generation});
  return id;
}

// What this thread has found since its last operator began or ended was born now: made by one that touches nothing, such as
// empty(), or returned by the one that ends.
void DeviceMemory::add_births(Stack& stack, bool in_operator) {
  if (stack.unseen.empty()) return;
  bool captured = captures_ || copies_.is_capturing(copies_.current());
  for (auto [id, generation] : stack.unseen) {
    Block& b = blocks_[id];
    if (b.generation != generation) continue;
    places_[id].is_new = false;
    places_[id].is_pinned_for_good |= captured;
    b.recorded = off_the_record ? kNever : tape_.born(b.serial, b.nbytes);
    b.scheduled = kNever;
    if (tape_.on_step_thread()) {
      bool followed = replay_.active();
      replay_.on_allocate(id, b.nbytes);
      if (followed && !replay_.active()) drop_prefetches();
    }
    if (!in_operator) continue;
    places_[id].is_its_allocation = true;
    ++b.pins;
    stack.pins.push_back({id, b.generation, b.recorded, tape_.clock().tick, Access::Write, true, b.nbytes});
  }
  stack.unseen.clear();
}

// Null where it has died, and where Python alone has it: whoever takes a reference then needs the GIL, which may be with somebody
// who waits for us.
DeviceMemory::Strong DeviceMemory::strong(BlockId id) const {
  const Place& p = places_[id];
  bool is_pythons = p.storage.use_count() == 1 && p.key->pyobj_slot()->load_pyobj() != nullptr;
  return is_pythons ? Strong() : p.storage.lock();
}

void DeviceMemory::forget(BlockId id) {
  Block& b = blocks_[id];
  Place& p = places_[id];
  tape_.died(b.recorded, b.kind, false, serials_);
  live_ -= b.nbytes;
  if (!b.is_absent()) resident_ -= b.paged_bytes;
  if (b.state == State::Unmade) --unmade_;
  if (any_recipes()) ended_.push_back({p.storage, p.key});
  host_.drop(p.host);
  ids_.erase(p.key);
  b.state = State::Dead;
  ++b.generation;
  blocks_.remove_live(id);
  blocks_.destroy(id);
  p = Place();
}

// A storage's end is not told: PyTorch gives its memory back as ever. All are looked at where that matters.
void DeviceMemory::sweep(bool all) {
  if (all) swept_ = 0;
  std::size_t looks = all ? blocks_.live().size() : std::min(kSwept, blocks_.live().size());
  for (; looks > 0 && !blocks_.live().empty(); --looks) {
    if (swept_ == 0 || swept_ > blocks_.live().size()) swept_ = blocks_.live().size();
    BlockId id = blocks_.live()[--swept_];  // from the last on: what takes the place of one that ends was looked at
    if (places_[id].storage.expired()) forget(id);
  }
}

// While its host copy is trusted, or a recipe made it or reads it, PyTorch calls before it gives an address away that may be written
// to.
void DeviceMemory::call_me(BlockId id, c10::StorageImpl& storage) {
  const Block& b = blocks_[id];
  if (b.is_absent() || (b.state != State::Clean && b.recipe == 0 && b.guards == 0)) return;
  call_before_write(storage, &is_written_unseen);
  places_[id].is_guarded = true;
}

void DeviceMemory::call_me_no_more(BlockId id, c10::StorageImpl& storage) {
  if (std::exchange(places_[id].is_guarded, false)) call_before_write(storage, nullptr);
}

void DeviceMemory::written(BlockId id) {
  if (blocks_[id].state != State::Clean) return;
  blocks_[id].state = State::Dirty;
  host_.drop(places_[id].host);
}

bool DeviceMemory::pin(c10::StorageImpl& storage, bool for_good) {
  if (in_child_ || storage.device() != device_) return true;
  if (any_recipes()) give_away(&storage);
  Lock lock(mutex_);
  BlockId id = find_or_add(storage);
  if (id == kNoBlock) return true;
  Place& p = places_[id];
  bool stayed = std::exchange(p.is_pinned, true);
  p.is_pinned_for_good = p.is_pinned_for_good || for_good;
  blocks_[id].last_use = ++now_;
  if (blocks_[id].state == State::Absent) start_back(id, true);
  arrive(id, copies_.current());
  call_me_no_more(id, storage);
  written(id);
  return stayed;
}

void DeviceMemory::unpin(c10::StorageImpl& storage) {
  if (in_child_ || storage.device() != device_) return;
  Lock lock(mutex_);
  if (BlockId id = find_or_add(storage); id != kNoBlock) places_[id].is_pinned = false;
}

void DeviceMemory::keep(c10::StorageImpl& storage) {
  if (in_child_ || storage.device() != device_) return;
  Lock lock(mutex_);
  BlockId id = find_or_add(storage);
  if (id == kNoBlock) return;
  places_[id].is_kept = true;
  blocks_[id].last_use = ++now_;
  if (blocks_[id].state == State::Absent) start_back(id, true);
}

bool DeviceMemory::is_here(c10::StorageImpl& storage) {
  Lock lock(mutex_);
  BlockId id = known(&storage);
  return id == kNoBlock || !blocks_[id].is_absent();
}

std::uint64_t DeviceMemory::evict(c10::StorageImpl& storage) {
  if (storage.device() != device_) return 0;
  Lock lock(mutex_);
  BlockId id = find_or_add(storage);
  return id != kNoBlock && evictable(id) && start_out(id) ? blocks_[id].paged_bytes : 0;
}

std::uint64_t DeviceMemory::stop() {
  suspend(true);
  Lock lock(mutex_);
  limit_ = 0;
  chaos_rate_ = 0.0;
  std::uint64_t away = 0;
  for (BlockId id : blocks_.live()) {
    places_[id].is_kept = false;
    if (blocks_[id].state == State::Absent) away += blocks_[id].paged_bytes;
    if (blocks_[id].state != State::Clean) continue;
    if (Strong storage = strong(id)) call_me_no_more(id, *storage);
    written(id);  // nothing leaves any more
  }
  host_.give_back();
  return away;
}

void DeviceMemory::suspend(bool suspends, bool for_a_graph) {
  if (suspends) make_all();  // while others can still leave
  Lock lock(mutex_);
  sweep(true);
  suspended_ = suspends;
  captures_ = suspends && for_a_graph;
  if (!suspends) return;
  drop_prefetches();
  std::vector<BlockId> live(blocks_.live().begin(), blocks_.live().end());
  std::uint64_t limit = std::exchange(limit_, 0);  // it is meant to be here
  c10::Stream stream = copies_.current();
  for (BlockId id : live) {
    if (blocks_[id].state == State::Absent) {
      try {
        start_back(id, true);
      } catch (const c10::OutOfMemoryError&) {
        break;
      }
    }
    if (blocks_[id].state != State::Dead) arrive(id, stream);
  }
  while (!evicting_.empty()) give_back_oldest(true);
  limit_ = limit;
}

// --- moves

bool DeviceMemory::evictable(BlockId id) const {
  const Block& b = blocks_[id];
  const Place& p = places_[id];
  return (b.state == State::Dirty || b.state == State::Clean) && b.pins == 0 && !p.is_new && !p.roams && !p.is_pinned &&
         !p.is_pinned_for_good && !p.is_kept && !suspended_;
}

// Its memory is free for others in the order of its stream. False: the host has no room.
bool DeviceMemory::start_out(BlockId id, Rank target) {
  if (!host_.has_file()) target = kHost;
  if (places_[id].storage.expired()) {
    forget(id);
    return true;
  }
  Strong storage = strong(id);
  if (!storage) return false;
  Block& b = blocks_[id];
  Place& p = places_[id];
  if (storage->_mutable_data_ptr_no_checks().get() != p.memory || storage->nbytes() != b.nbytes) return false;
  call_me_no_more(id, *storage);
  if (is_lazy(*storage)) {
    p.roams = true;
    return false;
  }
  if (p.was_pinned) {  // who had its address may have work on a stream that nobody told of
    copies_.synchronize();
    for (BlockId other : blocks_.live()) places_[other].was_pinned = false;
  }
  const bool is_unmade = b.state == State::Dirty && b.recipe != 0;
  const bool copies = b.state == State::Dirty && !is_unmade;
  if (copies) {
    host_.drop(p.host);  // of a copy that the device refused
    if (!(p.host = host_copy(b.nbytes))) return false;
  }
  c10::DataPtr& held = storage->_mutable_data_ptr_no_checks();
  c10::Event end(device_.type());  // of what uses the memory
  if (!is_arriving(held)) end.record(*p.stream);
  const c10::Event& last = is_arriving(held) ? static_cast<Arriving*>(held.get_context())->end : end;
  auto kind = static_cast<std::size_t>(b.kind);
  if (copies) {
    auto copy = copies_.out(const_cast<void*>(p.memory), p.host->memory, b.nbytes, last, tape_.recording());
    if (copy.timed_begin) {
      timed_.push_back(
          {b.recorded, tape_.clock().tick, kFast, target, now_ns(), std::move(*copy.timed_begin), std::move(*copy.timed_end)});
    }
    counters_.written[kind] += b.paged_bytes;
    counters_.tier_written[0] += b.nbytes;
    end = std::move(copy.end);
  }
  c10::DataPtr memory = std::move(held);
  if (auto arriving = take_arriving(memory)) {
    if (!copies) end = std::move(arriving->end);
    memory = std::move(arriving->memory);
    p.arrives = false;
  }
  p.memory = nowhere(id);
  storage->set_data_ptr_noswap({nowhere(id), device_});
  refuse_access(*storage, kAway);
  evicting_.push_back({std::move(memory), b.paged_bytes, *p.stream, p.is_its_allocation, std::move(end)});
  b.state = is_unmade ? State::Unmade : State::Absent;
  if (is_unmade) ++unmade_;
  resident_ -= b.paged_bytes;
  evicting_bytes_ += b.paged_bytes;
  counters_.evicted[kind] += b.paged_bytes;
  if (target == kFile && !is_unmade) host_.spill(*p.host, copies_.mark_out());
  if (std::uint64_t excess = host_.excess(); excess > 0) start_spills(excess);
  return true;
}

// Memory on the host. What lies there and is needed last goes to the file where there is none. Null: nothing can go.
HostCopy* DeviceMemory::host_copy(std::uint64_t nbytes) {
  host_.settle();
  while (true) {
    if (HostCopy* copy = host_.take(nbytes, false)) return copy;
    if (host_.has_file() && (host_.wait_for_one() || start_spills(nbytes))) continue;
    if (HostCopy* copy = host_.take(nbytes, true)) return copy;
    host_lacked_ = std::max(host_lacked_, nbytes);
    return nullptr;
  }
}

// The host gives memory up: copies of what is on the device, too, are dropped, and what is needed last goes to the file. False:
// nothing can.
bool DeviceMemory::start_spills(std::uint64_t needed) {
  struct Victim {
    bool is_awaited;  // it has come from the file, and is not on the device yet
    bool is_nowhere_else;  // neither on the device nor in the file
    std::uint64_t idle;
    BlockId id;
  };
  std::vector<Victim> victims;
  for (BlockId id : blocks_.live()) {
    const HostCopy* copy = places_[id].host;
    if (copy == nullptr || !copy->memory || copy->under_way || copy->stays) continue;
    victims.push_back({copy->came, blocks_[id].state != State::Clean && !copy->extent, idle(id), id});
  }
  std::ranges::sort(victims, [](const Victim& a, const Victim& b) {
    return std::tuple(a.is_awaited, a.is_nowhere_else, b.idle) < std::tuple(b.is_awaited, b.is_nowhere_else, a.idle);
  });
  std::uint64_t started = 0;
  for (auto it = victims.begin(); it != victims.end() && started < needed; ++it) {
    Place& p = places_[it->id];
    std::uint64_t nbytes = p.host->memory.nbytes;
    if (blocks_[it->id].state == State::Clean && !p.host->extent) {
      Strong storage = strong(it->id);
      if (!storage) continue;
      call_me_no_more(it->id, *storage);
      written(it->id);
    } else if (!host_.spill(*p.host, copies_.mark_out())) {
      continue;
    }
    started += nbytes;
  }
  return started > 0;
}

// Whether its contents are in host memory; they are asked for where they are not.
bool DeviceMemory::comes_to_host(BlockId id, bool waits) {
  HostCopy& copy = *places_[id].host;
  host_.settle();
  if (copy.is_in_memory()) return true;
  if (!waits) {
    if (!host_.bring(copy, false)) start_spills(copy.nbytes);
    return false;
  }
  const c10::Stream stream = copies_.current();
  note_time(stream, Mark::StallBegins);
  while (!host_.bring(copy, false)) {
    if (!host_.wait_for_one() && !start_spills(copy.nbytes)) break;
  }
  host_.bring(copy, true);
  host_.wait(copy);
  note_time(stream, Mark::StallEnds);
  if (copy.is_in_memory()) return true;
  std::string text = "ebbtide: a tensor of " + std::to_string(copy.nbytes >> 20) +
                     " MiB cannot come back: " + (copy.error != 0 ? HostCopies::failure(copy) : "the host has no memory to pin");
  if (counters_.message.empty()) counters_.message = text;
  if (Strong storage = strong(id)) refuse_access(*storage, text);
  return false;
}

bool DeviceMemory::start_back(BlockId id, bool waits) {
  Strong storage = strong(id);
  if (!storage) return true;  // nobody needs it any more
  Place& p = places_[id];
  std::optional<c10::Event> after;
  c10::DataPtr memory;
  {
    StaysInMemory stays(*p.host);
    if (!comes_to_host(id, waits)) return false;
    memory = memory_for(blocks_[id].paged_bytes, *p.stream, after, waits);
  }
  Block& b = blocks_[id];
  if (memory.get() == nullptr) return false;
  if (!after) after = copies_.mark(*p.stream);
  const Rank source = std::exchange(p.host->came, false) ? kFile : kHost;
  auto copy = copies_.back(memory.get(), p.host->memory, b.nbytes, *after, tape_.recording());
  if (copy.timed_begin) {
    timed_.push_back(
        {b.recorded, tape_.clock().tick, source, kFast, now_ns(), std::move(*copy.timed_begin), std::move(*copy.timed_end)});
  }
  p.arrives = true;
  p.memory = memory.get();
  p.is_its_allocation = true;
  allow_access(*storage);
  void* address = memory.get();
  storage->set_data_ptr_noswap(
      {address, new Arriving{std::move(memory), std::move(copy.end), *p.stream}, &give_back_arriving, device_});
  b.state = State::Clean;
  if (!tells<c10::StorageImpl>) written(id);
  b.has_come();
  resident_ += b.paged_bytes;
  resident_peak_ = std::max(resident_peak_, resident_);
  used_peak_ = std::max(used_peak_, used());
  counters_.fetched[static_cast<std::size_t>(b.kind)] += b.paged_bytes;
  counters_.tier_read[0] += b.nbytes;
  call_me(id, *storage);
  return true;
}

// For an operator. Whoever announces operators drops what is thrown here, so the storage says itself that it cannot be had.
void DeviceMemory::bring(BlockId id, const char* name) {
  try {
    start_back(id, true);
  } catch (const c10::OutOfMemoryError&) {
    std::string text = "ebbtide: " + device_.str() + " is out of memory: " + name + " needs a tensor of " +
                       std::to_string(blocks_[id].nbytes >> 20) + " MiB that is on the host, and nothing else can leave";
    refuse_to(id, text);
  }
}

// Whoever uses it now gets this error.
void DeviceMemory::refuse_to(BlockId id, const std::string& text) {
  if (counters_.message.empty()) counters_.message = text;
  counters_.over_budget = this_stack().lacked_memory = true;
  if (Strong storage = strong(id)) refuse_access(*storage, text);
}

// The stream uses it from now on.
void DeviceMemory::arrive(BlockId id, const c10::Stream& stream) {
  Place& p = places_[id];
  if (stream != *p.stream) {
    if (p.is_made) copies_.mark(*p.stream).block(stream);  // once: it roams from now on, and so is never made again
    p.is_made = false;
    p.roams = true;
  }
  if (!p.arrives) return;
  Strong storage = strong(id);
  if (!storage) return;
  p.arrives = false;
  auto arriving = take_arriving(storage->_mutable_data_ptr_no_checks());
  if (!arriving) return;  // somebody gave it other memory
  note_time(stream, Mark::StallBegins);
  arriving->end.block(stream);
  note_time(stream, Mark::StallEnds);
  if (stream != *p.stream) arriving->end.block(*p.stream);
  storage->set_data_ptr_noswap(std::move(arriving->memory));
}

// Memory that just leaves, where it is as large; else PyTorch's. `after`: it may be written after that.
c10::DataPtr DeviceMemory::memory_for(std::uint64_t nbytes, const c10::Stream& stream, std::optional<c10::Event>& after,
                                      bool waits) {
  auto same = std::ranges::find_if(
      evicting_, [&](const Eviction& l) { return l.nbytes == nbytes && l.stream == stream && l.is_its_allocation; });
  if (same != evicting_.end()) {
    c10::DataPtr memory = std::move(same->memory);
    after = std::move(same->end);
    evicting_bytes_ -= nbytes;
    evicting_.erase(same);
    return memory;
  }
  if (limit_ > 0 && used() + nbytes > limit_) {
    if (waits) {
      make_room(nbytes);
    } else {
      give_back_ended();
      if (used() + nbytes > limit_) return {};
    }
  }
  for (bool again : {true, false}) {
    try {
      return copies_.allocate(nbytes, stream);
    } catch (const c10::OutOfMemoryError&) {
      if (!waits) return {};
      if (!again) throw;
      while (!evicting_.empty()) give_back_oldest(true);
      start_evictions(nbytes);
      while (!evicting_.empty()) give_back_oldest(true);
    }
  }
  return {};
}

void DeviceMemory::give_back_oldest(bool by_waiting) {
  Eviction& l = evicting_.front();
  if (by_waiting) {
    note_time(l.stream, Mark::StallBegins);
    l.end.block(l.stream);
    note_time(l.stream, Mark::StallEnds);
  }
  if (!l.is_its_allocation) copies_.record(l.memory);  // it may be another stream's, and is given back when that copy has ended
  evicting_bytes_ -= l.nbytes;
  evicting_.pop_front();
}

void DeviceMemory::give_back_ended() {
  while (!evicting_.empty() && evicting_.front().end.query()) give_back_oldest(false);
}

// Until it is used next; else since.
std::uint64_t DeviceMemory::idle(BlockId id) const {
  auto ticks = replay_.until_use(blocks_[id], id);
  return ticks ? *ticks : replay_.active() ? 0 : now_ - blocks_[id].last_use;
}

std::uint64_t DeviceMemory::start_evictions(std::uint64_t needed) {
  sweep(true);
  candidates_.clear();
  for (BlockId id : blocks_.live()) {
    if (!evictable(id)) continue;
    const Block& b = blocks_[id];
    candidates_.push_back({id, Shield::None, b.state == State::Clean, b.paged_bytes, idle(id), b.transient});
  }
  std::size_t victims = choose_victims(candidates_, needed, policy_);
  std::uint64_t started = 0;
  for (std::size_t i = 0; i < candidates_.size() && started < needed; ++i) {
    if (i >= victims && !candidates_[i].clean) continue;  // where the host has no room for one, what lies there can still go
    BlockId id = candidates_[i].id;
    if (blocks_[id].state == State::Dead || !start_out(id)) continue;
    started += candidates_[i].bytes;
    blocks_[id].transient = true;
    if (replay_.active()) refetches_.request(id);
  }
  return started;
}

// Until so many bytes more are within the limit. False: nothing more can leave, and the budget is exceeded.
bool DeviceMemory::make_room(std::uint64_t nbytes) {
  if (limit_ == 0) return true;
  give_back_ended();
  while (used() + nbytes > limit_) {
    std::uint64_t missing = used() + nbytes - limit_;
    if (missing > evicting_bytes_ && start_evictions(missing - evicting_bytes_) == 0 && evicting_.empty()) {
      sweep(true);
      if (used() + nbytes <= limit_) return true;
      if (!counters_.over_budget) {
        counters_.over_budget = true;
        counters_.message = "tensors on " + device_.str() + " needed " + std::to_string((used() + nbytes) >> 20) +
                            " MiB at once of " + std::to_string(limit_ >> 20) + " MiB, and nothing else could leave";
        if (host_.error() != 0) {
          counters_.message += ": " + host_.failure();
        } else if (host_lacked_ > 0) {
          counters_.message +=
              "; a tensor of " + std::to_string(host_lacked_ >> 10) + " KiB found no place in pinned host memory";
        }
      }
      return false;
    }
    if (!evicting_.empty()) give_back_oldest(true);
  }
  return true;
}

// After births: back within the limit. Ahead of need, where no schedule says what comes: room for the next one.
void DeviceMemory::trim() {
  if (limit_ == 0) return;
  if (used() > limit_) make_room(0);
  if (replay_.active()) return;
  std::uint64_t free = limit_ - std::min(resident_, limit_);
  std::uint64_t wanted = std::min(std::max(largest_birth_, largest_birth_now_), limit_ / 4);
  if (free < wanted) start_evictions(wanted - free);
}

void DeviceMemory::chaos() {
  if (chaos_rate_ <= 0.0 || off_the_record) return;  // what makes anew would never come to an end
  auto random = [this] {  // xorshift
    chaos_state_ ^= chaos_state_ << 13;
    chaos_state_ ^= chaos_state_ >> 7;
    chaos_state_ ^= chaos_state_ << 17;
    return chaos_state_;
  };
  while (static_cast<double>(random() >> 11) * 0x1p-53 < chaos_rate_ && !blocks_.live().empty()) {
    BlockId id = blocks_.live()[random() % blocks_.live().size()];
    if (evictable(id)) start_out(id, random() % 2 == 0 ? kFile : kHost);
  }
}

// --- operators

void DeviceMemory::follow_thread() {
  if (!tape_.in_step() || off_the_record || tape_.on_step_thread()) return;
  if (thread_number() == step_thread_ || torch::autograd::get_current_graph_task_id() != -1) tape_.go_on_here();
}

void DeviceMemory::enter(const char* name, std::span<const Operand> operands, Work, Pass) {
  std::unique_lock lock(mutex_);
  Stack& mine = this_stack();
  c10::Stream stream = copies_.current();
  bool captured = captures_ || copies_.is_capturing(stream);  // a graph uses addresses again
  bool moves = !captured && !suspended_;
  const std::string_view called = name;
  bool shared = called == "aten::_lazy_clone";  // by two storages, until one of them is written to
  bool others_go_on = called.starts_with("c10d::") || called == "aten::record_stream";  // on streams that nobody announces
  sweep(tape_.recording());
  follow_thread();
  ++now_;
  if (tape_.on_step_thread()) {
    tape_.tick(name, static_cast<std::uint32_t>(mine.operators.size()), 0, used());
    replay_.tick();
    if (moves) note_time(stream, Mark::Tick);
  }
  add_births(mine, false);
  std::size_t first = mine.pins.size();
  mine.operators.push_back({first});
  for (const Operand& operand : operands) {
    BlockId id = known(operand.address);
    if (id == kNoBlock) continue;
    Block& b = blocks_[id];
    ++b.pins;
    b.last_use = now_;
    std::uint32_t recorded = off_the_record ? kNever : b.recorded;
    mine.pins.push_back({id, b.generation, recorded, tape_.clock().tick, operand.access, false, operand.moved});
  }
  const bool makes_anew = moves && (wants_all_recipes_ || (tape_.on_step_thread() && replay_.makes_anew()));
  if (moves && !off_the_record) carry_out_commands();
  std::uint64_t due = tape_.on_step_thread() ? replay_.births_due() : 0;
  if (due > 0 && limit_ > 0 && used() + due > limit_) make_room(due);
  for (std::size_t i = first; i < mine.pins.size(); ++i) {
    const OperatorPin pin = mine.pins[i];
    while (blocks_[pin.id].state == State::Unmade) {  // it left after the operator had been looked at
      lock.unlock();
      bool is_there = make_anew(places_[pin.id].key);
      lock.lock();
      if (!is_there) break;
    }
    Block& b = blocks_[pin.id];
    if (b.state == State::Absent) bring(pin.id, name);
    arrive(pin.id, stream);
    Place& p = places_[pin.id];
    p.is_pinned_for_good = p.is_pinned_for_good || captured || shared;
    p.is_pinned = p.is_pinned || others_go_on;
    if (b.state != State::Clean || (pin.access == Access::Read && !shared)) continue;
    if (Strong storage = strong(pin.id)) call_me_no_more(pin.id, *storage);
    written(pin.id);
  }
  mine.makes_anew = makes_anew;  // operators that ran meanwhile said otherwise
  if (!moves || off_the_record) return;
  chaos();
  start_prefetches();
}

void DeviceMemory::exit() {
  if (in_child_) return;
  Lock lock(mutex_);
  Stack& mine = this_stack();
  if (mine.operators.empty()) return;
  follow_thread();
  add_births(mine, true);
  std::size_t first = mine.operators.back().first_pin;
  mine.operators.pop_back();
  std::uint64_t needed = 0;
  std::size_t kept = first;
  for (std::size_t i = first; i < mine.pins.size(); ++i) {
    OperatorPin pin = mine.pins[i];
    Block& b = blocks_[pin.id];
    if (b.generation != pin.generation) continue;
    needed += b.paged_bytes;
    if (pin.born_here && !mine.operators.empty()) {  // what an inner operator made is the outer one's to use
      mine.pins[kept++] = pin;
      continue;
    }
    tape_.used(pin.recorded, pin.from_tick, pin.access, pin.moved);
    b.last_use = now_;
    --b.pins;
    if ((b.recipe == 0 && b.guards == 0) || places_[pin.id].is_guarded) continue;
    if (Strong storage = strong(pin.id)) call_me(pin.id, *storage);  // its kernel asked for the address in order to read
  }
  mine.pins.resize(kept);
  if (needed > counters_.largest_operator_bytes) counters_.largest_operator_bytes = needed;
  if (!suspended_) trim();
}

std::uint64_t DeviceMemory::note_need(const char*, std::span<const Operand> operands) {
  Lock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const Operand& operand : operands) {
    if (BlockId id = known(operand.address); id != kNoBlock) bytes += blocks_[id].paged_bytes;
  }
  return bytes;
}

void DeviceMemory::prefetch(std::span<const Operand> operands) {
  Lock lock(mutex_);
  for (const Operand& operand : operands) {
    BlockId id = known(operand.address);
    if (id != kNoBlock && blocks_[id].state == State::Absent) start_back(id, false);
  }
}

void DeviceMemory::classify(const void* storage, Kind kind) {
  Lock lock(mutex_);
  if (BlockId id = known(storage); id != kNoBlock) {
    blocks_[id].kind = kind;
    blocks_[id].classified = true;
  }
}

// --- the step

Counters DeviceMemory::begin_step(bool record) {
  Lock lock(mutex_);
  sweep(true);
  for (auto [id, generation] : std::exchange(this_stack().unseen, {})) {
    if (blocks_[id].generation == generation) places_[id].is_new = false;
  }
  step_thread_ = thread_number();
  step_live_peak_ = live_;
  largest_birth_ = std::exchange(largest_birth_now_, 0);
  Counters before = count();
  tape_.begin(record, used());
  marks_.clear();
  timed_.clear();
  if (record) {
    for (BlockId id : blocks_.live()) {
      bool stays = places_[id].is_pinned_for_good || places_[id].is_kept;
      blocks_[id].recorded = tape_.was_there(blocks_[id].serial, blocks_[id].nbytes, stays);
    }
    note_time(copies_.current(), Mark::Tick);
    began_ns_ = now_ns();
  }
  begin_schedule();
  return before;
}

void DeviceMemory::begin_schedule() {
  drop_prefetches();
  replay_.begin();
  replay_.each_that_begins_away([this](BlockId id, Rank target) {
    if (evictable(id)) start_out(id, target);
  });
  carry_out_commands();
  start_prefetches();
}

Counters DeviceMemory::end_step(bool completed) {
  Lock lock(mutex_);
  if (tape_.in_step()) tape_.go_on_here();
  sweep(true);
  if (completed) {
    replay_.end(0);
  } else {
    replay_.abandon();
  }
  drop_prefetches();
  std::int64_t stalled_ns = 0, now = now_ns();
  if (tape_.recording()) read_times(stalled_ns, now);
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    if (!b.classified) b.kind = Kind::Other;
    tape_.is(b.recorded, b.kind);
    b.recorded = kNever;
    places_[id].was_pinned |= std::exchange(places_[id].is_pinned, false);
  }
  read_makings();
  tape_.end(stalled_ns, now);
  marks_.clear();
  timed_.clear();
  return count();
}

// Marks the stream's time in a recorded step.
void DeviceMemory::note_time(const c10::Stream& stream, Mark::What what) {
  if (!tape_.recording() || !tape_.on_step_thread() || marks_.size() >= 2 * kMostTicks) return;
  marks_.push_back({copies_.timed_mark(stream), what});
}

// When the device came to what the host had asked for. Where it does not tell times, those of the host stay.
void DeviceMemory::read_times(std::int64_t& stalled_ns, std::int64_t& now) {
  marks_.push_back({copies_.timed_mark(copies_.current()), Mark::Tick});
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  try {
    for (const Mark& mark : marks_) mark.event.synchronize();
    std::int64_t since = 0, at = 0;
    auto after = [this](const c10::Event& event) {
      return static_cast<std::int64_t>(marks_.front().event.elapsedTime(event) * 1e6);
    };
    for (const Mark& mark : marks_) {
      at = std::max(at, after(mark.event));
      if (mark.what == Mark::Tick) times.emplace_back(at, stalled_ns);
      if (mark.what == Mark::StallBegins) since = at;
      if (mark.what == Mark::StallEnds) stalled_ns += at - since;
    }
    now = began_ns_ + at;
    times.pop_back();  // the end
    for (const TimedCopy& copy : timed_) {
      copy.end.synchronize();
      std::int64_t begin = began_ns_ + after(copy.begin), end = began_ns_ + after(copy.end);
      Lane lane = copy.source == kFast ? Lane::Out : Lane::Back;
      tape_.moved({copy.storage, copy.tick, lane, copy.source, copy.target, std::min(copy.asked_ns, begin), begin, end});
    }
  } catch (const c10::Error&) {
    return;
  }
  tape_.set_times(times);
}

void DeviceMemory::carry_out_commands() {
  for (Command command; replay_.next(command);) {
    BlockId id = replay_.block(command.storage);
    if (id == kNoBlock) continue;
    Block& b = blocks_[id];
    if (command.verb == Verb::Fetch) {
      if (b.state == State::Absent) queue_prefetch(id);
    } else if (command.source == kFast && !(command.verb == Verb::Evict && command.then == Then::Keep)) {
      b.has_come();
      if (evictable(id)) start_out(id, command.target);
    }
  }
  refetches_.take_due(ns_per_byte_, [this](BlockId id) { queue_prefetch(id); });
}

void DeviceMemory::queue_prefetch(BlockId id) {
  blocks_[id].comes_back = Return::Prefetch;
  prefetches_.push_back({id, blocks_[id].generation});
}

// In their order; what is still read from the file keeps none of the others waiting.
void DeviceMemory::start_prefetches() {
  bool has_room = true;
  std::erase_if(prefetches_, [&](Bound bound) {
    if (!is_due(bound)) return true;
    if (!comes_to_host(bound.id, false) || !has_room) return false;
    return has_room = start_back(bound.id, false);
  });
}

bool DeviceMemory::is_due(Bound bound) const {
  const Block& b = blocks_[bound.id];
  return b.generation == bound.generation && b.state == State::Absent && b.comes_back == Return::Prefetch;
}

void DeviceMemory::drop_prefetches() {
  for (Bound bound : prefetches_) {
    if (is_due(bound)) blocks_[bound.id].comes_back = Return::Unplanned;
  }
  prefetches_.clear();
}

std::size_t DeviceMemory::load_schedule(Schedule schedule) {
  Lock lock(mutex_);
  return replay_.load(std::move(schedule));
}

void DeviceMemory::unload_schedule(std::size_t number) {
  Lock lock(mutex_);
  replay_.unload(number);
}

void DeviceMemory::unload_schedules() {
  Lock lock(mutex_);
  replay_.unload();
}

std::optional<std::size_t> DeviceMemory::followed() {
  Lock lock(mutex_);
  return replay_.followed();
}

std::size_t DeviceMemory::gone() {
  Lock lock(mutex_);
  return replay_.gone();
}

std::size_t DeviceMemory::standing() {
  Lock lock(mutex_);
  return replay_.standing();
}

Counters DeviceMemory::counters() {
  Lock lock(mutex_);
  return count();
}

void DeviceMemory::reset_peaks() {
  Lock lock(mutex_);
  sweep(true);
  resident_peak_ = resident_;
  used_peak_ = used();
  live_peak_ = live_;
}

// How long the device took for what it has made anew so far. Where it does not tell times, none is known.
void DeviceMemory::read_makings() {
  try {
    while (!makings_.empty() && makings_.front().end.query()) {
      counters_.made_anew_ns += static_cast<std::int64_t>(makings_.front().begin.elapsedTime(makings_.front().end) * 1e6);
      makings_.pop_front();
    }
  } catch (const c10::Error&) {
    makings_.clear();
  }
}

// --- what is made anew

void DeviceMemory::find_result(c10::StorageImpl& storage) {
  if (in_child_ || storage.device() != device_) return;
  {
    Lock lock(mutex_);
    std::size_t before = this_stack().unseen.size();
    BlockId id = find_or_add(storage);
    if (id == kNoBlock) return;
    if (this_stack().unseen.size() == before) return;
    places_[id].is_new = true;
  }
  Births::note(&storage);
}

void DeviceMemory::note_births() {
  Lock lock(mutex_);
  add_births(this_stack(), true);
}

std::uint64_t DeviceMemory::size_of(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  return id == kNoBlock ? 0 : blocks_[id].nbytes;
}

// It is this stream's, and no other's. Else who else uses it, and gives it back, would not wait for what makes anew.
bool DeviceMemory::is_this_streams(BlockId id) const {
  const Place& p = places_[id];
  return !p.roams && !p.is_pinned && !p.is_pinned_for_good && *p.stream == copies_.current();
}

bool DeviceMemory::may_be_read_again(const void* place) {
  Lock lock(mutex_);
  BlockId id = known(place);
  return id != kNoBlock && is_this_streams(id);
}

c10::Storage DeviceMemory::copy_of(const c10::Storage& storage) {
  return storage.device() == device_ ? copies_.clone(storage) : copy_in_host_memory(storage);
}

std::uint32_t DeviceMemory::checksum_of(const void* address) {
  Strong storage;
  {
    Lock lock(mutex_);
    BlockId id = known(address);
    if (id != kNoBlock) storage = strong(id);
    if (!storage) return 0;
    ++blocks_[id].pins;
    if (blocks_[id].state == State::Absent && !start_back(id, true)) {
      --blocks_[id].pins;
      return 0;
    }
    arrive(id, copies_.current());
  }
  c10::Storage bytes = copies_.to_host(c10::Storage(storage));
  Lock lock(mutex_);
  --blocks_[known(address)].pins;
  return ebbtide::checksum_of(bytes.data(), bytes.nbytes());
}

bool DeviceMemory::wants_recipes() { return tells<c10::StorageImpl> && (wants_all_recipes_ || this_stack().makes_anew); }

bool DeviceMemory::wants_recipe(const void* address) {
  Lock lock(mutex_);
  add_births(this_stack(), true);  // it is the result of an operator that ends
  BlockId id = known(address);
  return id != kNoBlock && !suspended_ && (wants_all_recipes_ || replay_.wants_recipe(blocks_[id], id));
}

void DeviceMemory::want_all_recipes(bool all, unsigned one_in) {
  Lock lock(mutex_);
  wants_all_recipes_ = all;
  one_in_is_ingredient_ = one_in;
}

bool DeviceMemory::keep_recipe(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  if (id == kNoBlock || blocks_[id].is_absent() || !is_this_streams(id) || suspended_) return false;
  Strong storage = strong(id);
  if (!storage) return false;
  blocks_[id].recipe = ++recipes_;
  call_me(id, *storage);
  return true;
}

Forgotten DeviceMemory::forget_recipe(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  if (id == kNoBlock) return Forgotten::Part;
  if (blocks_[id].state == State::Unmade) return Forgotten::NotYet;
  return std::exchange(blocks_[id].recipe, 0) != 0 ? Forgotten::Whole : Forgotten::Part;
}

bool DeviceMemory::has_recipe(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  return id != kNoBlock && blocks_[id].recipe != 0;
}

bool DeviceMemory::is_ingredient(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  if (id == kNoBlock) return false;
  if (!wants_all_recipes_) return replay_.is_ingredient(blocks_[id], id);
  return one_in_is_ingredient_ > 0 && blocks_[id].serial % one_in_is_ingredient_ == 0 && blocks_[id].recipe != 0;
}

void DeviceMemory::guard(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  if (id == kNoBlock) return;
  ++blocks_[id].guards;
  if (Strong storage = strong(id)) call_me(id, *storage);
}

void DeviceMemory::unguard(const void* address) {
  Lock lock(mutex_);
  if (BlockId id = known(address); id != kNoBlock && blocks_[id].guards > 0) --blocks_[id].guards;
}

bool DeviceMemory::is_guarded(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  return id != kNoBlock && blocks_[id].guards > 0;
}

std::uint64_t DeviceMemory::unmade_by(const void* address, std::uint64_t) {
  Lock lock(mutex_);
  BlockId id = known(address);
  return id != kNoBlock && blocks_[id].state == State::Unmade ? blocks_[id].recipe : 0;
}

std::optional<c10::Stream> DeviceMemory::begin_making(const void* address, bool again) {
  Lock lock(mutex_);
  BlockId id = known(address);
  if (id == kNoBlock) return std::nullopt;
  const c10::Stream stream = *places_[id].stream;
  std::uint64_t nbytes = blocks_[id].paged_bytes;
  make_room(nbytes);
  if (again) {
    start_evictions(nbytes);
    while (!evicting_.empty()) give_back_oldest(true);
  }
  making_since_ = copies_.timed_mark(stream);
  return stream;
}

bool DeviceMemory::hand_over(const void* from, const void* to, std::uint64_t recipe, bool keeps) {
  Lock lock(mutex_);
  BlockId id = known(to), made = known(from);
  if (id == kNoBlock || made == kNoBlock || blocks_[id].state != State::Unmade || blocks_[id].recipe != recipe) return false;
  Strong storage = strong(id), source = strong(made);
  if (!storage || !source) return false;
  if (blocks_[made].state == State::Absent && !start_back(made, true)) return false;
  arrive(made, *places_[id].stream);
  call_me_no_more(made, *source);
  c10::DataPtr memory = std::move(source->_mutable_data_ptr_no_checks());
  forget(made);
  Block& b = blocks_[id];
  Place& p = places_[id];
  p.memory = memory.get();
  p.is_its_allocation = p.is_made = true;
  p.arrives = false;
  allow_access(*storage);
  storage->set_data_ptr_noswap(std::move(memory));
  b.state = State::Dirty;
  b.last_use = now_;
  b.has_come();
  if (!keeps) b.recipe = 0;
  --unmade_;
  resident_ += b.paged_bytes;
  resident_peak_ = std::max(resident_peak_, resident_);
  used_peak_ = std::max(used_peak_, used());
  counters_.made_anew += b.paged_bytes;
  call_me(id, *storage);
  if (making_since_) makings_.push_back({std::move(*making_since_), copies_.timed_mark(*p.stream)});
  making_since_.reset();
  return true;
}

void DeviceMemory::made_ingredient(std::uint64_t bytes) {
  Lock lock(mutex_);
  counters_.ingredients += bytes;
}

bool DeviceMemory::refuse(const void* address, const std::string& name) {
  Lock lock(mutex_);
  if (BlockId id = known(address); id != kNoBlock)
    refuse_to(id, "ebbtide: " + device_.str() + " is out of memory: " + name + " was to make a tensor of " +
                      std::to_string(blocks_[id].nbytes >> 20) + " MiB anew, and nothing else can leave");
  return true;
}

// The objects of those that were told before are given back now.
std::vector<const void*> DeviceMemory::ended() {
  std::vector<Ended> told;
  Lock lock(mutex_);
  sweep(true);
  told.swap(forgotten_);
  forgotten_.swap(ended_);
  std::vector<const void*> keys;
  for (const Ended& each : forgotten_) keys.push_back(each.key);
  return keys;
}

Counters DeviceMemory::count() const {
  Counters c = counters_;
  c.live = live_;
  c.resident = resident_;
  c.reserved = used();
  c.arena_limit = limit_;
  c.live_peak = live_peak_;
  c.step_live_peak = step_live_peak_;
  c.reserved_peak = used_peak_;
  c.resident_peak = resident_peak_;
  c.tier_used = {host_.used()};
  c.tier_peak = {host_.peak()};
  if (host_.has_file()) {
    c.tier_used.push_back(host_.file_used());
    c.tier_peak.push_back(host_.file_peak());
    c.tier_written.push_back(host_.file_written());
    c.tier_read.push_back(host_.file_read());
  }
  c.blocks = blocks_.live().size();
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    if (b.state == State::Clean) c.clean += b.paged_bytes;
    if (b.state == State::Dirty) c.dirty += b.paged_bytes;
  }
  return c;
}

}  // namespace ebbtide
