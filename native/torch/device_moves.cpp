// Moves of a device's storages [Note: order].
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "device_memory.hpp"
#include "storage_access.hpp"

namespace ebbtide {

namespace {

// Where nothing is, for as long as any tensor: an address of its own for each block that is away.
char* nowhere(BlockId id) {
  static const Reservation* reserved = new Reservation(std::size_t{1} << 40, kSmallPage, PROT_NONE);
  return reserved->begin() + id * kSmallPage;
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

}  // namespace

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
  if (!p.is_guarded && is_lazy(*storage)) {
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
  evicting_.push_back({std::move(memory), b.paged_bytes, *p.stream, p.is_its_allocation, std::move(end)});
  b.state = is_unmade ? State::Unmade : State::Absent;
  call_me(id, *storage);
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

void DeviceMemory::refuse_no_more(BlockId id) {
  if (Strong storage = strong(id)) allow_access(*storage);
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

}  // namespace ebbtide
