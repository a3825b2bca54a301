#include "device_region.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

namespace ebbtide {

namespace {
using Guard = std::lock_guard<std::mutex>;
constexpr auto kLook = std::chrono::microseconds(20);
}  // namespace

DeviceRegion::DeviceRegion(Device& device, std::size_t bytes, CUstream (*stream)())
    : Region(device.reserve(bytes), bytes, device.granularity()),
      device_(device),
      stream_(stream),
      of_(bytes / device.granularity() * sizeof(Id), kSmallPage, PROT_READ | PROT_WRITE) {}

// --- handles

// Null: these places have none.
DeviceRegion::Backing* DeviceRegion::find(Run run) {
  Id id = of(run.first) - 1;
  return id == kNone ? nullptr : &backings_[id];
}

DeviceRegion::Backing& DeviceRegion::get(Run run) {
  Backing* b = find(run);
  if (b == nullptr) fatal("a place of the GPU without memory", 0);
  return *b;
}

DeviceRegion::Id DeviceRegion::create(std::uint32_t pages) {
  std::optional<Handle> handle = device_.create(pages * page());
  if (!handle) {
    throw ArenaError(std::string("the GPU has no memory left for ") + BytesText(pages * page()).text +
                     ", though the budget has: lower --fast, or end what else uses this GPU");
  }
  Id id = static_cast<Id>(backings_.size());
  if (unused_.empty()) {
    backings_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Backing& b = backings_[id] = {};
  b.handle = *handle;
  b.home = take_vacant(pages);
  device_.map(address(b.home.first), bytes(b.home), b.handle, false);
  created_bytes_ += bytes(b.home);
  return id;
}

// It is naked.
void DeviceRegion::destroy(Id id) {
  Backing& b = backings_[id];
  device_.unmap(address(b.home.first), bytes(b.home));
  vacant_.give(b.home);
  device_.destroy(b.handle);
  created_bytes_ -= bytes(b.home);
  unused_.push_back(id);
}

void DeviceRegion::cache(Id id) {
  Backing& b = backings_[id];
  b.leaving = Leaving::No;
  b.detached = false;
  cached_[b.home.count].push_back(id);
  cached_bytes_ += bytes(b.home);
}

void DeviceRegion::add_stream(Backing& b, StreamNumber stream) {
  if (std::ranges::find(b.streams, stream) == b.streams.end()) b.streams.push_back(stream);
}

// All of its uses so far.
void DeviceRegion::mark(Backing& b) {
  for (StreamNumber stream : b.streams) {
    Ticket ticket = device_.mark(stream);
    auto older = std::ranges::find(b.tickets, stream, &Ticket::stream);
    older == b.tickets.end() ? b.tickets.push_back(ticket) : void(*older = ticket);
  }
  b.streams.clear();
}

void DeviceRegion::wait_a_little() const {
  device_.require_alive();
  std::this_thread::sleep_for(kLook);
}

bool DeviceRegion::has_passed(const Backing& b) const {
  return std::ranges::all_of(b.tickets, [this](const Ticket& t) { return device_.passed(t); });
}

void DeviceRegion::map_at(Backing& b, Run run, bool read_only) {
  device_.map(address(run.first), bytes(run), b.handle, read_only);
  b.at = run;
  b.read_only = read_only;
}

void DeviceRegion::unmap_at(Backing& b) {
  device_.unmap(address(b.at.first), bytes(b.at));
  b.at = {};
}

// Rather one that waits for nothing on this stream; kNone: there is none of this size.
DeviceRegion::Id DeviceRegion::take_cached(std::uint32_t pages, StreamNumber stream) {
  auto found = cached_.find(pages);
  if (found == cached_.end() || found->second.empty()) return kNone;
  std::vector<Id>& ids = found->second;
  auto waits = [&](Id id) {
    const Backing& b = backings_[id];
    return std::ranges::any_of(b.tickets, [&](const Ticket& t) { return t.stream != stream && !device_.passed(t); });
  };
  auto best = ids.end() - 1;  // the last to be cached
  for (auto at = ids.end(); at-- != ids.begin();) {
    if (waits(*at)) continue;
    best = at;
    if (backings_[*at].at.count > 0) break;  // parked: nothing has to be mapped
  }
  Id id = *best;
  ids.erase(best);
  cached_bytes_ -= pages * page();
  return id;
}

std::uint64_t DeviceRegion::fresh_bytes(std::uint32_t pages) const {
  auto found = cached_.find(pages);
  return found != cached_.end() && !found->second.empty() ? 0 : pages * page();
}

// The oldest of each size first.
std::uint64_t DeviceRegion::release_cached(std::uint64_t wanted, std::uint32_t pages_kept) {
  Guard guard(mutex_);
  std::uint64_t released = 0;
  for (auto& [pages, ids] : cached_) {
    std::size_t kept = pages == pages_kept ? 1 : 0;
    for (std::size_t i = 0; i < ids.size() && ids.size() > kept && released < wanted;) {
      Backing& b = backings_[ids[i]];
      if (!has_passed(b)) {
        ++i;
        continue;
      }
      if (b.at.count > 0) {
        Run place = b.at;
        unmap_at(b);
        of(place.first) = 0;
        vacant_.give(place);
      }
      destroy(ids[i]);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i));
      cached_bytes_ -= pages * page();
      released += pages * page();
    }
  }
  return released;
}

bool DeviceRegion::release_comes() const {
  device_.require_alive();
  for (const auto& [pages, ids] : cached_) {
    if (std::ranges::any_of(ids, [this](Id id) { return !has_passed(backings_[id]); })) return true;
  }
  return false;
}

// --- births and deaths

Run DeviceRegion::allocate_pages(std::uint32_t pages, bool) {
  Guard guard(mutex_);
  StreamNumber stream = device_.number_of(stream_());
  Id id = take_cached(pages, stream);
  if (id == kNone) id = create(pages);
  Backing& b = backings_[id];
  for (const Ticket& ticket : b.tickets) device_.order(stream, ticket);
  b.tickets.clear();
  if (b.at.count == 0) {
    Run place = take_vacant(pages);
    map_at(b, place, false);
    of(place.first) = id + 1;
  }
  add_stream(b, stream);
  return b.at;
}

void DeviceRegion::give_pages(Run run, bool) {
  Guard guard(mutex_);
  Id id = create(run.count);
  map_at(backings_[id], run, false);
  of(run.first) = id + 1;
  add_stream(backings_[id], device_.number_of(stream_()));
}

void DeviceRegion::free_pages(Run run) {
  Guard guard(mutex_);
  Backing& b = get(run);
  mark(b);
  cache(of(run.first) - 1);
}

// What has been detached is naked.
void DeviceRegion::unmap(Run run) {
  Guard guard(mutex_);
  if (!get(run).detached) fatal("memory of the GPU that is in use cannot leave", 0);
  get(run).tickets.clear();
  cache(std::exchange(of(run.first), 0) - 1);
}

void DeviceRegion::decommit(Run run) {
  Guard guard(mutex_);
  Backing& b = get(run);
  mark(b);
  while (!has_passed(b)) wait_a_little();
  if (b.at.count > 0) unmap_at(b);
  destroy(std::exchange(of(run.first), 0) - 1);
}

// --- access

bool DeviceRegion::make_read_only(Run run) {
  Guard guard(mutex_);
  Backing& b = get(run);
  if (b.at.count > 0 && !b.read_only) device_.set_access(address(run.first), bytes(run), true);
  b.read_only = true;
  return true;
}

void DeviceRegion::make_writable(Run run) {
  Guard guard(mutex_);
  Backing& b = get(run);
  if (b.at.count > 0 && b.read_only) device_.set_access(address(run.first), bytes(run), false);
  b.read_only = false;
}

// --- uses

void DeviceRegion::used_on(Run run, void* stream) {
  Guard guard(mutex_);
  Backing* b = find(run);
  if (b == nullptr) return;
  StreamNumber number = device_.number_of(static_cast<CUstream>(stream));
  device_.uses(number);
  add_stream(*b, number);
}

void DeviceRegion::start_leaving(Run run, bool readable) {
  Guard guard(mutex_);
  Backing& b = get(run);
  std::vector<StreamNumber> streams = b.streams;
  mark(b);
  if (readable) b.streams = streams;  // its readers go on
  b.leaving = readable ? Leaving::Readable : Leaving::Whole;
}

void DeviceRegion::stay(Run run, bool read_only) {
  Guard guard(mutex_);
  Backing& b = get(run);
  b.leaving = Leaving::No;
  for (const Ticket& ticket : b.tickets) add_stream(b, ticket.stream);  // what they stand for may be under way
  if (std::exchange(b.detached, false)) {
    map_at(b, run, read_only);
  } else if (b.read_only != read_only) {
    device_.set_access(address(run.first), bytes(run), read_only);
    b.read_only = read_only;
  }
}

bool DeviceRegion::is_detached(Run run) const {
  Guard guard(mutex_);
  return const_cast<DeviceRegion*>(this)->get(run).detached;
}

bool DeviceRegion::detach(Run run) {
  for (;; wait_a_little()) {
    Guard guard(mutex_);
    Backing* b = find(run);
    if (b == nullptr || b->leaving == Leaving::No) return false;
    if (b->detached) return true;
    if (!has_passed(*b)) continue;
    if (b->leaving == Leaving::Readable) {
      if (!b->read_only) device_.set_access(address(run.first), bytes(run), true);
      b->read_only = true;
    } else {
      unmap_at(*b);
      b->tickets.clear();
      b->detached = true;
    }
    return true;
  }
}

const char* DeviceRegion::contents(Run run) const {
  Guard guard(mutex_);
  return address(const_cast<DeviceRegion*>(this)->get(run).home.first);
}

// --- fetches

// A parked handle keeps its old address until await_fill() takes it; the address is given back by end_fill().
void DeviceRegion::begin_fill(Run run) {
  Guard guard(mutex_);
  Id id = take_cached(run.count, ~StreamNumber{0});
  if (id == kNone) {
    try {
      id = create(run.count);
    } catch (const ArenaError& error) {
      fatal(error.what(), 0);
    }
  }
  of(run.first) = id + 1;
}

Run DeviceRegion::filling(Slot place, std::uint32_t most) const {
  Guard guard(mutex_);
  const Backing& b = const_cast<DeviceRegion*>(this)->get({place, most});
  return {b.home.first, std::min(most, b.home.count)};
}

void DeviceRegion::await_fill(Run run) {
  for (;; wait_a_little()) {
    Guard guard(mutex_);
    Backing& b = get(run);
    if (!has_passed(b)) continue;
    b.tickets.clear();
    if (b.at.count > 0 && !b.detached) device_.unmap(address(b.at.first), bytes(b.at));
    b.detached = true;
    return;
  }
}

void DeviceRegion::end_fill(Run run, bool appear) {
  Guard guard(mutex_);
  Backing& b = get(run);
  if (!std::exchange(b.detached, false)) return cache(std::exchange(of(run.first), 0) - 1);  // never begun: it is still parked
  if (b.at.count > 0) {
    of(b.at.first) = 0;
    vacant_.give(std::exchange(b.at, {}));
  }
  if (appear) return map_at(b, run, true);
  cache(std::exchange(of(run.first), 0) - 1);
}

// --- for tests

void DeviceRegion::check() const {
  Guard guard(mutex_);
  auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("invariant broken: ") + what);
  };
  std::uint64_t cached = 0;
  for (const auto& [pages, ids] : cached_) {
    for (Id id : ids) {
      const Backing& b = backings_[id];
      cached += bytes(b.home);
      require(b.home.count == pages && b.leaving == Leaving::No && !b.detached, "a cached handle leaves, or has another size");
      require(b.at.count == 0 || of(b.at.first) == id + 1, "a parked handle is not where it lies");
      require(b.at.count > 0 || has_passed(b), "a naked handle is in use");
    }
  }
  require(cached == cached_bytes_, "cached bytes of the GPU");
}

}  // namespace ebbtide
