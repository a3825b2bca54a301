#include "device_memory.hpp"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "../core/per_thread.hpp"
#include "births.hpp"
#include "recipes.hpp"
#include "storage_access.hpp"

namespace ebbtide {

namespace {

constexpr std::uint64_t kUnit = 512;  // PyTorch's allocators round up to it
constexpr std::size_t kSwept = 8;     // blocks that are looked at with each operator, whether they still live

std::uint64_t paged(std::uint64_t nbytes) { return round_up(nbytes, kUnit); }

DeviceMemory* memory = nullptr;

}  // namespace

// PyTorch calls it before the first access that may write to a storage, from whichever thread. It forgets the call afterwards. An
// operator may write to what its schema says it reads, or only ask in that way.
void is_reached_unseen(c10::StorageImpl* storage) { memory->reached_unseen(*storage); }

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

DeviceMemory::Stack& DeviceMemory::this_stack() { return of_this_thread<Stack>(); }

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
  call_me(id, storage);
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
    b.recorded = off_the_record ? kNever : tape_.born(b.serial, b.nbytes, stack.operators.size(), tape_.line());
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

// As long as it may move, and while it is away. PyTorch forgets the call once another thread was told, too.
void DeviceMemory::call_me(BlockId id, c10::StorageImpl& storage) {
  bool wanted = !suspended_ || blocks_[id].is_absent();
  if (wanted == places_[id].is_guarded && wanted == is_lazy(storage)) return;
  if (wanted) {
    places_[id].is_guarded = call_before_write(storage, &is_reached_unseen);
  } else {
    call_me_no_more(id, storage);
  }
}

void DeviceMemory::call_me_no_more(BlockId id, c10::StorageImpl& storage) {
  if (std::exchange(places_[id].is_guarded, false)) call_no_more(storage);
}

void DeviceMemory::written(BlockId id) {
  if (blocks_[id].state != State::Clean) return;
  blocks_[id].state = State::Dirty;
  host_.drop(places_[id].host);
}

// Who calls no operator gets the contents, and may keep the address. An operator of PyTorch's was looked at before [prepare_for].
void DeviceMemory::reached_unseen(c10::StorageImpl& storage) {
  TORCH_CHECK(!in_child_, "ebbtide: a forked child has no part in its parent's ", device_.str());
  Strong kept = Strong::reclaim_copy(&storage);  // while no lock is held: Python may be the only one that has it
  // Whoever has our lock may need Python's, in order to give a storage up.
  std::optional<pybind11::gil_scoped_release> without_gil;
  const bool has_gil = PyGILState_Check() != 0;  // no kernel of PyTorch's has: it is a hook's code, say
  if (has_gil) without_gil.emplace();
  {
    Lock lock(mutex_);
    BlockId id = known(&storage);
    if (id == kNoBlock) return;
    const Block& b = blocks_[id];
    if (b.state == State::Absent) start_back(id, true);
    if (!b.is_absent()) arrive(id, copies_.current());
    written(id);
    if (!b.is_absent() && !has_gil && is_operand(id)) {
      places_[id].is_guarded = false;
      return;
    }
    places_[id].is_pinned = true;
  }
  bool before = std::exchange(leaves_references, true);
  bool is_given = !any_recipes() || give_away(&storage);
  leaves_references = before;
  Lock lock(mutex_);
  BlockId id = known(&storage);
  if (id == kNoBlock) return;
  TORCH_CHECK_WITH(OutOfMemoryError, is_given && !blocks_[id].is_absent(), "ebbtide: a tensor cannot be reached on ",
                   device_.str(), ": ", counters_.message);
  arrive(id, copies_.current());  // which may not be the stream that made it
  places_[id].is_guarded = false;  // last: operators that made contents anew said otherwise
}

// Of the operator of PyTorch's that this thread is in.
bool DeviceMemory::is_operand(BlockId id) {
  const Stack& mine = this_stack();
  if (mine.operators.empty() || !mine.operators.back().is_pytorchs) return false;
  return std::any_of(mine.pins.begin() + static_cast<std::ptrdiff_t>(mine.operators.back().first_pin), mine.pins.end(),
                     [id](const OperatorPin& pin) { return pin.id == id; });
}

bool DeviceMemory::pin(c10::StorageImpl& storage, bool for_good) {
  if (in_child_ || storage.device() != device_) return true;
  TORCH_CHECK_WITH(
      OutOfMemoryError, !any_recipes() || give_away(&storage), "ebbtide: ", device_.str(),
      " is out of memory: what is made of a tensor whose address is asked for cannot be made before, and nothing else "
      "can leave");
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

DeviceMemory::Left DeviceMemory::stop() {
  suspend(true);
  Lock lock(mutex_);
  limit_ = 0;
  chaos_rate_ = 0.0;
  Left left;
  for (BlockId id : blocks_.live()) {
    places_[id].is_kept = false;
    if (blocks_[id].state == State::Absent) {
      const HostCopy& copy = *places_[id].host;
      left.nbytes += blocks_[id].paged_bytes;
      if (copy.error != 0) left.failure = HostCopies::failure(copy);
    }
    written(id);  // nothing leaves any more
    if (Strong storage = strong(id)) call_me(id, *storage);
  }
  host_.give_back();
  return left;
}

void DeviceMemory::suspend(bool suspends, bool for_a_graph) {
  if (suspends) make_all();  // while others can still leave
  Lock lock(mutex_);
  sweep(true);
  suspended_ = suspends;
  captures_ = suspends && for_a_graph;
  if (!suspends) {
    for (BlockId id : blocks_.live()) {
      if (Strong storage = strong(id)) call_me(id, *storage);
    }
    return;
  }
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
    if (!b.is_absent()) c.resident_kinds[static_cast<std::size_t>(b.kind)] += b.paged_bytes;
  }
  return c;
}

}  // namespace ebbtide
