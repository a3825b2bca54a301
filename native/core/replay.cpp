#include "replay.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace ebbtide {

namespace {

constexpr double kLateMargin = 1.25;  // a late fetch moves this much further ahead than it was late
constexpr unsigned kMostSetbacks = 4;

void check(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("not a schedule: ") + what);
}

void check(const Schedule& s, Rank slowest) {
  std::uint64_t storages = s.storages.size();
  check(s.n_ticks > 0 && s.tick_ns.size() == s.n_ticks + std::size_t{1}, "its ticks and their times differ in number");
  check(std::ranges::is_sorted(s.tick_ns), "time runs backwards");
  check(s.headroom.size() == s.n_ticks, "its ticks and their headroom differ in number");
  check(std::ranges::is_sorted(s.commands, {}, &Command::tick), "commands are not in the order of their ticks");
  for (const Command& c : s.commands) {
    check(c.storage < storages && c.tick < s.n_ticks, "a command is out of range");
    check(c.source <= slowest && c.target <= slowest, "a command is for a tier that is not there");
    check(c.verb == Verb::Drop || (c.verb == Verb::Evict ? c.source < c.target : c.source > c.target),
          "an eviction goes to a slower tier, and a fetch to a faster one");
    check(c.verb != Verb::Drop || c.source != kFast || c.target != kFast, "what is dropped from fast memory has nowhere to go");
  }
  for (std::uint32_t storage : s.allocations) {
    check(storage < storages && s.storages[storage].birth < s.n_ticks, "an allocation is out of range");
  }
  for (const ScheduledStorage& storage : s.storages) {
    check(std::ranges::is_sorted(storage.uses), "uses are not in the order of their ticks");
    check(storage.begins <= slowest, "a storage begins on a tier that is not there");
    check(storage.maker == kNever || storage.maker < s.n_ticks, "what makes a storage is out of range");
  }
}

}  // namespace

std::size_t Replay::load(Schedule schedule) {
  check(schedule, slowest_);
  Script script;
  script.schedule = std::move(schedule);
  std::size_t n = script.schedule.storages.size();
  script.bound.resize(n);
  script.late.resize(n);
  script.makers.resize(script.schedule.n_ticks);
  for (const ScheduledStorage& storage : script.schedule.storages) {
    if (storage.maker != kNever) script.makers[storage.maker] = true;
  }
  std::unordered_map<std::uint64_t, std::uint32_t> by_serial;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (std::uint64_t serial = script.schedule.storages[i].serial; serial != 0) by_serial.emplace(serial, i);
  }
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    auto found = by_serial.find(b.serial);
    if (found == by_serial.end() || script.schedule.storages[found->second].nbytes != b.nbytes) continue;
    bind(script, found->second, {id, b.generation});
  }
  auto place = std::ranges::find_if(scripts_, &Script::is_free);
  preferred_ = static_cast<std::size_t>(place - scripts_.begin());
  if (place == scripts_.end()) scripts_.emplace_back();
  scripts_[preferred_] = std::move(script);
  return preferred_;
}

void Replay::unload(std::size_t number) {
  if (number >= scripts_.size()) return;
  scripts_[number] = Script{};
  while (!scripts_.empty() && scripts_.back().is_free()) scripts_.pop_back();
  if (active_ == number) active_.reset();
  if (followed_ == number) followed_.reset();
}

void Replay::unload() {
  scripts_.clear();
  active_.reset();
  followed_.reset();
}

void Replay::bind(Script& script, std::uint32_t storage, Bound block) {
  script.bound[storage] = block;
  blocks_[block.id].scheduled = storage;
}

void Replay::begin() {
  seen_.clear();
  active_.reset();
  followed_.reset();
  gone_ = standing_ = 0;
  for (Script& script : scripts_) script.agrees = !script.is_free();
  if (preferred_ < scripts_.size()) follow(preferred_);
}

// Takes up a schedule that agrees with the step so far, where it stands now.
bool Replay::follow(std::size_t number) {
  Script& script = scripts_[number];
  if (!script.agrees) return false;
  active_ = number;
  std::ranges::fill(script.late, Late{});
  for (std::uint32_t i = 0; i < script.bound.size(); ++i) {
    const Bound& bound = script.bound[i];
    if (bound.id != kNoBlock && blocks_[bound.id].generation == bound.generation) blocks_[bound.id].scheduled = i;
  }
  tick_ = 0;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    std::uint32_t storage = script.schedule.allocations[i];
    tick_ = script.schedule.storages[storage].birth;
    if (blocks_[seen_[i].id].generation == seen_[i].generation) bind(script, storage, seen_[i]);
  }
  const auto& commands = script.schedule.commands;
  auto now = std::ranges::lower_bound(commands, tick_, {}, &Command::tick);
  next_command_ = seen_.empty() ? 0 : static_cast<std::size_t>(now - commands.begin());
  return true;
}

void Replay::abandon() { active_.reset(); }

void Replay::tick() {
  if (active_) ++tick_;
}

void Replay::on_allocate(BlockId id, std::uint64_t nbytes) {
  if (std::ranges::none_of(scripts_, &Script::agrees)) return;  // nor will one: a step may go on for hours
  Bound block{id, blocks_[id].generation};
  std::size_t n = seen_.size();
  seen_.push_back(block);
  for (Script& script : scripts_) {
    const Schedule& s = script.schedule;
    script.agrees = script.agrees && n < s.allocations.size() && s.storages[s.allocations[n]].nbytes == nbytes;
  }
  if (active_) {
    Script& script = scripts_[*active_];
    if (script.agrees) {
      std::uint32_t storage = script.schedule.allocations[n];
      tick_ = script.schedule.storages[storage].birth;
      bind(script, storage, block);
      return;
    }
    active_.reset();
  }
  for (std::size_t i = scripts_.size(); i-- > 0;) {
    if (follow(i)) return;
  }
}

void Replay::end(std::int64_t stalled_ns) {
  if (!active_) return;
  auto whole = [&](const Script& script) { return script.schedule.allocations.size() == seen_.size(); };
  if (whole(scripts_[*active_])) {
    followed_ = preferred_ = *active_;
    learn(scripts_[*active_], stalled_ns);
  } else {  // it ended early: it may be another that begins like this one
    for (std::size_t i = scripts_.size(); i-- > 0 && !followed_;) {  // of two for one step, the later
      if (whole(scripts_[i]) && scripts_[i].agrees) followed_ = preferred_ = i;
    }
  }
  active_.reset();
  if (!followed_) return;
  Script& script = scripts_[*followed_];
  standing_ = standing(script);
  if (!script.standing) script.standing = standing_;  // what only the recorded step had (its batch) has gone by then
  gone_ = *script.standing - std::min(standing_, *script.standing);
}

std::size_t Replay::standing(const Script& script) const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < script.bound.size(); ++i) {
    const Bound& bound = script.bound[i];
    if (script.schedule.storages[i].birth != kNever || bound.id == kNoBlock) continue;
    const Block& b = blocks_[bound.id];
    count += b.generation == bound.generation && b.state != State::Dead;
  }
  return count;
}

// What came late in this step starts earlier in the next; if that made it worse (the disk was busy), the best commands so
// far come back, and are tried again from there.
void Replay::learn(Script& script, std::int64_t stalled_ns) {
  bool again = script.best == script.schedule.commands;
  if (script.best.empty() || again || stalled_ns < script.best_stalled_ns) {
    script.best = script.schedule.commands;
    script.best_headroom = script.schedule.headroom;
    script.best_stalled_ns = stalled_ns;
    if (script.setbacks < kMostSetbacks) move_late_ones(script);
  } else {
    script.schedule.commands = script.best;
    script.schedule.headroom = script.best_headroom;
    ++script.setbacks;
  }
}

// As far as there is headroom: what takes that of a birth makes others go for it, who are not expected to.
void Replay::move_late_ones(Script& script) {
  Schedule& s = script.schedule;
  bool moved = false;
  for (Command& c : s.commands) {
    Late late = script.late[c.storage];
    if (c.verb != Verb::Fetch || c.target != kFast || late.ns == 0) continue;
    auto wanted = s.tick_ns[c.tick] - static_cast<std::int64_t>(static_cast<double>(late.ns) * kLateMargin);
    for (bool enough = false; !enough && c.tick > c.earliest && s.headroom[c.tick - 1] >= late.bytes; moved = true) {
      s.headroom[--c.tick] -= late.bytes;
      enough = s.tick_ns[c.tick] <= wanted;
    }
  }
  if (moved) std::ranges::stable_sort(s.commands, {}, &Command::tick);
}

bool Replay::next(Command& command) {
  if (!active_) return false;
  const auto& commands = scripts_[*active_].schedule.commands;
  if (next_command_ == commands.size() || commands[next_command_].tick > tick_) return false;
  command = commands[next_command_++];
  return true;
}

std::uint64_t Replay::births_due() const {
  if (!active_) return 0;
  const Schedule& s = scripts_[*active_].schedule;
  std::uint64_t bytes = 0;
  for (std::size_t i = seen_.size(); i < s.allocations.size() && s.storages[s.allocations[i]].birth == tick_; ++i)
    bytes += s.storages[s.allocations[i]].nbytes;
  return bytes;
}

Rank Replay::birth(std::uint64_t nbytes) const {
  if (!active_) return kFast;
  const Schedule& s = scripts_[*active_].schedule;
  if (seen_.size() >= s.allocations.size()) return kFast;
  const ScheduledStorage& next = s.storages[s.allocations[seen_.size()]];
  return next.nbytes == nbytes ? next.begins : kFast;
}

BlockId Replay::block(std::uint32_t storage) const {
  const Bound& bound = scripts_[*active_].bound[storage];
  if (bound.id == kNoBlock || blocks_[bound.id].generation != bound.generation) return kNoBlock;
  return blocks_[bound.id].state == State::Dead ? kNoBlock : bound.id;
}

bool Replay::is_bound(const Block& b, BlockId id) const {
  if (!active_ || b.scheduled >= scripts_[*active_].bound.size()) return false;
  const Bound& bound = scripts_[*active_].bound[b.scheduled];
  return bound.id == id && bound.generation == b.generation;
}

bool Replay::wants_recipe(const Block& b, BlockId id) const {
  return is_bound(b, id) && scripts_[*active_].schedule.storages[b.scheduled].maker != kNever;
}

bool Replay::is_ingredient(const Block& b, BlockId id) const {
  return is_bound(b, id) && scripts_[*active_].schedule.storages[b.scheduled].ingredient;
}

std::optional<std::uint32_t> Replay::until_use(const Block& b, BlockId id) const {
  if (!is_bound(b, id)) return std::nullopt;
  const Schedule& schedule = scripts_[*active_].schedule;
  const ScheduledStorage& storage = schedule.storages[b.scheduled];
  std::uint32_t n = schedule.n_ticks;
  std::uint32_t now = std::min(tick_, n - 1);
  if (storage.birth != kNever && now < storage.birth) now += n;  // born in the step before: its uses run past n
  auto use = std::ranges::lower_bound(storage.uses, now);
  if (use != storage.uses.end()) return *use - now;
  return storage.uses.empty() || now >= n ? n : storage.uses.front() + n - now;  // none is left: they come round
}

std::optional<std::int64_t> Replay::ns_left(const Block& b, BlockId id) const {
  auto ticks = until_use(b, id);
  if (!ticks) return std::nullopt;
  const auto& at = scripts_[*active_].schedule.tick_ns;
  std::uint32_t n = scripts_[*active_].schedule.n_ticks, now = std::min(tick_, n - 1), use = now + *ticks;
  return std::max<std::int64_t>(at[use % n] + use / n * at[n] - at[now + 1], 0);
}

void Replay::was_late(const Block& b, BlockId id, std::int64_t ns) {
  if (!is_bound(b, id)) return;
  Late& late = scripts_[*active_].late[b.scheduled];
  late = {late.ns + ns, b.paged_bytes};
}

}  // namespace ebbtide
