#include "plain_recorder.hpp"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../core/per_thread.hpp"
#include "../core/system.hpp"
#include "allocator.hpp"
#include "lines.hpp"
#include "operator_rules.hpp"

namespace ebbtide {

namespace {

constexpr std::uint8_t kPriority = 254;  // an arena stands in front
const c10::Device kCpu(c10::DeviceType::CPU);

PlainRecorder* recorder = nullptr;

void require_no_arena() {
  if (the_arena() == nullptr) return;
  throw std::runtime_error("a session with a budget has run in this process, and only such a session can record it from then on");
}

// A storage that an operator of this thread uses.
struct Used {
  const void* address;
  std::uint64_t serial;
  std::uint32_t recorded;
  std::uint32_t first;
  Access access;
  bool born_here;
  std::uint64_t moved;
};

struct Running {
  std::uint64_t serial;
  std::size_t first_use;
};

struct Operators {
  std::vector<Running> running;
  std::vector<Used> uses;
};

void release_watched(void* address) {
  if (address != nullptr) recorder->release(address);
}

class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator& previous) : previous_(previous) {}

  c10::DataPtr allocate(std::size_t nbytes) override {
    void* address = recorder->allocate(nbytes);
    return {address, address, &release_watched, kCpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_watched; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override { previous_.copy_data(to, from, nbytes); }

 private:
  c10::Allocator& previous_;
};

}  // namespace

void* PlainRecorder::allocate(std::size_t nbytes) {
  void* address = pytorchs_.raw_allocate(nbytes);
  born(address, nbytes);
  return address;
}

void PlainRecorder::born(void* address, std::size_t nbytes) {
  if (address == nullptr || nbytes == 0 || in_child_ || !watches_) return;
  bool untouched = std::exchange(next_is_untouched, false) && of_this_thread<Operators>().running.empty();
  BirthLine line(tape_);
  Lock lock(mutex_);
  if (std::uint64_t each = piece_bytes(nbytes, least_piece_); each > 0) {
    ended_at(address);
    const Large& large = large_[address] = {.nbytes = nbytes, .each = each, .line = tape_.line(), .whole = ++wholes_};
    if (!untouched) take_up(address, large, true, !of_this_thread<Operators>().running.empty());
    return;
  }
  Live live{.nbytes = nbytes,
            .kind = tape_.in_step() ? Kind::Activation : Kind::Other,
            .born_in_step = tape_.in_step(),
            .born_in_operator = !of_this_thread<Operators>().running.empty()};
  begin_to_watch(address, live, true);
}

void PlainRecorder::release(void* address) {
  if (!in_child_) {
    Lock lock(mutex_);
    ended_at(address);
  }
  pytorchs_.raw_deleter()(address);  // last: from here on the address may be another thread's
}

void PlainRecorder::ended_at(const void* address) {
  if (auto large = large_.find(address); large != large_.end()) {
    Large was = large->second;
    large_.erase(large);
    for (std::uint64_t i = 0; i < was.nbytes / was.each; ++i) {
      if (auto piece = live_.find(static_cast<const char*>(address) + i * was.each); piece != live_.end()) ended(piece);
    }
  } else if (auto entry = live_.find(address); entry != live_.end()) {
    ended(entry);
  }
}

void PlainRecorder::take_up(const void* address, const Large& large, bool is_born, bool in_operator) {
  for (std::uint64_t i = 0; i < large.nbytes / large.each; ++i) begin_piece(address, large, i, is_born, in_operator);
}

void PlainRecorder::begin_piece(const void* address, const Large& large, std::uint64_t number, bool is_born, bool in_operator) {
  bool last = number + 1 == large.nbytes / large.each;
  bool in_step = is_born && tape_.in_step();
  begin_to_watch(static_cast<const char*>(address) + number * large.each,
                 {.nbytes = last ? large.nbytes - number * large.each : large.each,
                  .kind = large.classified ? *large.classified
                          : in_step        ? Kind::Activation
                                           : Kind::Other,
                  .classified = large.classified.has_value(),
                  .born_in_step = in_step,
                  .born_in_operator = in_operator,
                  .end_is_seen = large.end_is_seen,
                  .whole = large.whole},
                 is_born, large.line);
}

// Visits the entries that the operand lies in, each with its share of what is moved; a piece that was not used before is born.
template <typename Visit>
void PlainRecorder::each_piece(const Operand& operand, Visit visit) {
  auto found = large_.find(operand.address);
  if (found == large_.end()) {
    if (auto entry = live_.find(operand.address); entry != live_.end()) visit(entry, operand.moved);
    return;
  }
  const Large& large = found->second;
  ByteRange range = operand.range.within(0, large.nbytes);
  if (range.bytes() == 0) return;
  std::uint64_t count = large.nbytes / large.each;
  for (std::uint64_t i = std::min(range.begin / large.each, count - 1); i < count && i * large.each < range.end; ++i) {
    const char* at = static_cast<const char*>(operand.address) + i * large.each;
    if (!live_.contains(at)) begin_piece(operand.address, large, i, true, false);
    auto entry = live_.find(at);
    std::uint64_t part = range.within(i * large.each, i * large.each + entry->second.nbytes).bytes();
    visit(entry, range.share_of(operand.moved, part));
  }
}

void PlainRecorder::begin_to_watch(const void* address, Live live, bool is_born, LineOf line) {
  if (auto stale = live_.find(address); stale != live_.end()) ended(stale);  // whose end was not seen
  live.serial = ++serials_;
  live.recorded = is_born ? tape_.born(live.serial, live.nbytes, of_this_thread<Operators>().running.size(), line, live.whole)
                          : tape_.was_there(live.serial, live.nbytes, false, live.whole);
  if (live.recorded != kNever && live.born_in_operator) {
    of_this_thread<Operators>().uses.push_back(
        {address, live.serial, live.recorded, tape_.clock().tick, Access::Write, true, live.nbytes});
  }
  live_.emplace(address, live);
}

void PlainRecorder::ended(std::unordered_map<const void*, Live>::iterator entry) {
  const Live& live = entry->second;
  tape_.died(live.recorded, live.kind, live.born_in_operator, serials_);
  live_.erase(entry);
}

void PlainRecorder::watch(bool watches, std::uint64_t least_piece) {
  Lock lock(mutex_);
  least_piece_ = least_piece;
  large_.clear();
  watches_ = watches;
  live_.clear();
}

const void* PlainRecorder::find(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (!watches_ || data.get() == nullptr || storage.nbytes() == 0 || !data.device().is_cpu()) return nullptr;
  Lock lock(mutex_);
  auto large = large_.find(data.get());
  if (large != large_.end() && (large->second.end_is_seen || large->second.nbytes == storage.nbytes())) return data.get();
  auto entry = live_.find(data.get());
  if (large == large_.end() && entry != live_.end() && (entry->second.end_is_seen || entry->second.nbytes == storage.nbytes()))
    return data.get();
  Live live{.nbytes = storage.nbytes()};
  live.end_is_seen = sees_end_of(data);
  ended_at(data.get());
  if (std::uint64_t each = piece_bytes(live.nbytes, least_piece_); each > 0) {
    Large& made = large_[data.get()] = {.nbytes = live.nbytes, .each = each, .end_is_seen = live.end_is_seen, .whole = ++wholes_};
    take_up(data.get(), made, false, false);
  } else {
    begin_to_watch(data.get(), live, false);
  }
  return data.get();
}

bool PlainRecorder::sees_end_of(c10::DataPtr& data) {
  // The context of the default allocator's pointers is the address, so its end comes here from now on.
  return data.get_deleter() == &release_watched ||
         (data.get_context() == data.get() && data.compare_exchange_deleter(pytorchs_.raw_deleter(), &release_watched));
}

void PlainRecorder::enter(const char* name, std::span<const Operand> operands, Work, Pass) {
  Lock lock(mutex_);
  auto& mine = of_this_thread<Operators>();
  tape_.tick(name, static_cast<std::uint32_t>(mine.running.size()), 0, 0);
  mine.running.push_back({++operators_, mine.uses.size()});
  for (const Operand& operand : operands) {
    each_piece(operand, [&](auto entry, std::uint64_t moved) {
      auto& [address, live] = *entry;
      if (live.used_by == operators_) {  // it comes twice
        auto use = std::find_if(mine.uses.begin() + static_cast<std::ptrdiff_t>(mine.running.back().first_use), mine.uses.end(),
                                [&](const Used& u) { return u.address == address; });
        use->access = static_cast<Access>(static_cast<int>(use->access) | static_cast<int>(operand.access));
        use->moved += moved;
        return;
      }
      live.used_by = operators_;
      mine.uses.push_back({address, live.serial, live.recorded, tape_.clock().tick, operand.access, false, moved});
    });
  }
}

void PlainRecorder::exit() {
  if (in_child_) return;
  Lock lock(mutex_);
  auto& mine = of_this_thread<Operators>();
  if (mine.running.empty()) return;
  Running ends = mine.running.back();
  mine.running.pop_back();
  std::size_t kept = ends.first_use;
  for (std::size_t i = ends.first_use; i < mine.uses.size(); ++i) {
    Used use = mine.uses[i];
    auto entry = use.born_here ? live_.find(use.address) : live_.end();
    bool lives = entry != live_.end() && entry->second.serial == use.serial;
    if (lives && !mine.running.empty()) {  // what an inner operator made is the outer one's to fill
      mine.uses[kept++] = use;
      continue;
    }
    if (lives) entry->second.born_in_operator = false;
    if (tape_.serial_of(use.recorded) == use.serial) tape_.used(use.recorded, use.first, use.access, use.moved);
  }
  mine.uses.resize(kept);
}

// Counts as the arena does [Note: groups].
std::uint64_t PlainRecorder::note_need(const char*, std::span<const Operand> operands) {
  Lock lock(mutex_);
  std::vector<const void*> counted;  // pieces, which two operands may have
  std::uint64_t bytes = 0;
  for (const Operand& operand : operands) {
    bool whole = !large_.contains(operand.address);
    each_piece(operand, [&](auto entry, std::uint64_t) {
      if (!whole && std::ranges::find(counted, entry->first) != counted.end()) return;
      if (!whole) counted.push_back(entry->first);
      bytes += counted_bytes(entry->second.nbytes);
    });
  }
  return bytes;
}

// Callers MUST be outside of all operators: a recording has no beginnings from before it.
Counters PlainRecorder::begin_step(bool record) {
  Lock lock(mutex_);
  of_this_thread<Operators>() = {};
  tape_.begin(record);
  for (auto& [address, live] : live_) live.recorded = tape_.was_there(live.serial, live.nbytes, false, live.whole);
  return {};
}

Counters PlainRecorder::end_step(bool) {
  Lock lock(mutex_);
  std::int64_t now = now_ns();
  for (auto& [address, live] : live_) {
    if (!live.classified && live.born_in_step) live.kind = Kind::Other;
    live.born_in_step = false;
    tape_.is(live.recorded, live.kind);
    live.recorded = kNever;
  }
  tape_.end(0, now);
  return {};
}

void PlainRecorder::classify(const void* address, Kind kind) {
  Lock lock(mutex_);
  auto set = [&](const void* at) {
    if (auto entry = live_.find(at); entry != live_.end()) {
      entry->second.kind = kind;
      entry->second.classified = true;
    }
  };
  auto found = large_.find(address);
  if (found == large_.end()) return set(address);
  Large& large = found->second;
  large.classified = kind;
  for (std::uint64_t i = 0; i < large.nbytes / large.each; ++i) set(static_cast<const char*>(address) + i * large.each);
}

PlainRecorder& install_plain_recorder() {
  require_no_arena();
  if (recorder != nullptr) return *recorder;
  c10::Allocator* previous = c10::GetCPUAllocator();
  if (previous->raw_deleter() == nullptr) {
    throw std::runtime_error(
        "another CPU allocator is installed that Ebbtide cannot stand in front of; start to record before it");
  }
  recorder = new PlainRecorder(*previous);
  pthread_atfork(nullptr, nullptr, [] { recorder->child(); });
  c10::SetCPUAllocator(new WatchedAllocator(*previous), kPriority);
  return *recorder;
}

c10::DeleterFnPtr watched_deleter() { return recorder != nullptr ? &release_watched : nullptr; }

}  // namespace ebbtide
