// What a device makes anew [Note: made anew here].
#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "births.hpp"
#include "device_memory.hpp"
#include "lines.hpp"
#include "recipe.hpp"
#include "storage_access.hpp"

namespace ebbtide {

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
  BirthLine line(tape_);
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

bool DeviceMemory::guard(const void* address) {
  Lock lock(mutex_);
  BlockId id = known(address);
  if (id == kNoBlock) return false;
  ++blocks_[id].guards;
  if (Strong storage = strong(id)) call_me(id, *storage);
  return true;
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

}  // namespace ebbtide
