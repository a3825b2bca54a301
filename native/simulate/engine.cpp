#include "engine.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

namespace ebbtide::simulate {

Run::Run(const Pieces& pieces, const Commands& commands, const Machine& machine, const Asked& asked)
    : Online(pieces, machine, asked.policy, asked.score), commands_(commands), asked_(asked), most_rounds_(most_rounds()) {
  sort_out();
  place();
}

// By tick and by piece.
void Run::sort_out() {
  first_of_.assign(n_ticks_ + 1, 0);
  begins_.resize(pieces_.size());
  auto is_here = [&](std::uint32_t storage, Rank rank) { return storage < pieces_.of.size() && rank < n_tiers_; };
  std::uint32_t before = 0;
  for (const Command& command : commands_.rows) {
    bool in_order = before <= command.tick && command.tick < n_ticks_ && command.due < n_ticks_;
    if (!in_order || !is_here(command.storage, std::max(command.source, command.target))) {
      throw std::invalid_argument("the schedule is of another step, or not in order");
    }
    before = command.tick;
    ++first_of_[command.tick + 1];
  }
  for (std::size_t tick = 0; tick < n_ticks_; ++tick) first_of_[tick + 1] += first_of_[tick];
  for (const Begin& begin : commands_.begins) {
    if (!is_here(begin.storage, begin.tier)) throw std::invalid_argument("the schedule is of another step");
    begins_[pieces_.of[begin.storage]].push_back(begin.tier);
  }
}

// Every piece through every tier, chunk by chunk, and as often again. Copies that make room for one another for ever would
// go on after that.
std::int64_t Run::most_rounds() const {
  std::int64_t chunks = 0;
  for (std::int64_t nbytes : pieces_.nbytes) chunks += nbytes / machine_.chunk_bytes + 1;
  return 100 + 16 * static_cast<std::int64_t>(n_tiers_) * chunks;
}

// ---- the beginning -------------------------------------------------------------------------------------------------

// Puts what is there before the first tick where the schedule has it.
void Run::place() {
  std::vector<const Command*> first(pieces_.size(), nullptr);
  std::unordered_map<Piece, unsigned> replica, gone;  // where what was born in the step before lies at its end
  for (std::size_t tick = 0; tick < n_ticks_; ++tick) {
    for (const Command& command : commands(tick)) {
      Piece piece = pieces_.of[command.storage];
      bool drops = command.verb == Verb::Drop, from_fast = command.source == 0, to_fast = !drops && command.target == 0;
      if ((from_fast || to_fast) && first[piece] == nullptr) first[piece] = &command;
      if (static_cast<std::int64_t>(tick) <= pieces_.birth[piece]) continue;
      if (from_fast && !drops) {
        replica[piece] = command.target;
      } else if (from_fast && replica.contains(piece)) {
        gone[piece] = replica[piece];
      } else if (to_fast) {
        gone.erase(piece);
      }
    }
  }
  for (Piece piece = 0; piece < pieces_.size(); ++piece) {
    if (pieces_.persistent[piece] != 0) {
      for (unsigned rank : first_ranks(piece, first[piece])) take(piece, rank);
      continue;
    }
    if (pieces_.generations[piece] == 0) continue;
    auto found = gone.find(piece);
    unsigned rank = found != gone.end() && may_lie(piece, found->second) ? found->second : birth_rank(piece);
    take(piece, rank);
    for (std::int64_t more = pieces_.generations[piece] - 1; more > 0; --more) {
      grow_old(piece);
      take(piece, rank);
    }
  }
}

std::span<const Command> Run::commands(std::size_t tick) const {
  return std::span(commands_.rows).subspan(first_of_[tick], first_of_[tick + 1] - first_of_[tick]);
}

std::vector<unsigned> Run::first_ranks(Piece piece, const Command* begin) {
  std::vector<unsigned> told;
  std::ranges::copy_if(begins_[piece], std::back_inserter(told), [&](unsigned rank) { return may_lie(piece, rank); });
  if (!told.empty()) {
    if (machine_.exclusive) return {*std::ranges::min_element(told)};
    return told;
  }
  if (begin != nullptr && begin->verb == Verb::Fetch && may_lie(piece, begin->source)) return {begin->source};
  std::vector<unsigned> reachable;
  for (unsigned rank = 1; rank < n_tiers_; ++rank) {
    if (hop_[rank] >= 0 && may_lie(piece, rank)) reachable.push_back(rank);
  }
  if (begin != nullptr && begin->verb == Verb::Drop && !reachable.empty() && !machine_.exclusive) return {0, reachable[0]};
  bool is_used = pieces_.first_use[piece] < static_cast<std::int64_t>(n_ticks_);
  if (asked_.policy != nullptr && !is_used && pieces_.scratch[piece] == 0 && machine_.tiers[0].capacity < kUnlimited) {
    std::erase_if(reachable, [&](unsigned rank) { return !has_room(piece, rank); });
    if (!reachable.empty()) return {reachable.back()};
  }
  return {home(piece)};
}

unsigned Run::birth_rank(Piece piece) {
  unsigned rank = begins_[piece].empty() ? home(piece) : begins_[piece][0];
  return rank != 0 && has_room(piece, rank) ? rank : 0;
}

// ---- one step ------------------------------------------------------------------------------------------------------

void Run::steps() {
  int noted = asked_.policy == nullptr ? 1 : std::max(asked_.n_steps - 2, 1);
  for (int left = asked_.n_steps; left > 0; --left) {
    if (left >= noted) record_.clear(n_ticks_, links_.moved_bytes(), now_);
    step(left == 1);
  }
  record_.finish(links_.moved_bytes(), noted);
}

void Run::step(bool is_last) {
  record_.begin(now_, is_last && asked_.keeps_spans);
  for (std::size_t tick = 0; tick < n_ticks_; ++tick) {
    record_.starts[tick] += now_ - record_.began;
    for (Piece piece : pieces_.deaths[tick]) die(piece);
    for (const Command& command : commands(tick)) issue(command);
    for (Piece piece : pieces_.births[tick]) await_eviction(piece);
    for (const Use& use : pieces_.uses[tick]) pinned_[use.piece] |= use.mode;
    for (Piece piece : pieces_.births[tick]) pinned_[piece] |= kWrite;
    for (Piece piece : pieces_.births[tick]) bear(piece);
    wait(tick);
    compute(tick, use(tick));
    for (const Use& use : pieces_.uses[tick]) pinned_[use.piece] = 0;
    for (Piece piece : pieces_.births[tick]) pinned_[piece] = 0;
    depart(tick);
    promote_hot();
    go_ahead();
    links_.start(now_);
    ++at_;
  }
  record_.end(now_);
  end_step();
}

// Until the tick may begin.
void Run::wait(std::size_t tick) {
  place_unborn();
  std::vector<Piece> lacking = missing(tick);
  record_.uses(pieces_.n_used[tick], static_cast<std::int64_t>(lacking.size()));
  for (std::int64_t round = 0;; ++round) {
    if (round == most_rounds_) throw DoesNotFit{tick};
    for (Piece piece : lacking) demand(piece);
    links_.start(now_);
    if (!lacking.empty()) lacking = missing(tick);
    if (lacking.empty() && unborn_.empty() && free(0) >= 0) return;
    evict_for(lacking);
    Stall cause = lacking.empty() ? Stall::Room : Stall::Late;
    for (Piece piece : lacking) {
      if (std::ranges::any_of(copies_[piece], &Copy::demanded)) cause = Stall::Demand;
    }
    double began = now_;
    links_.start(now_);
    if (links_.idle()) {
      place_unborn();
      lacking = missing(tick);
      if (!lacking.empty() || !unborn_.empty() || free(0) < 0) unstick(tick);
      continue;
    }
    go_on();
    record_.stall(tick, cause, began, now_);
    lacking = missing(tick);
  }
}

double Run::use(std::size_t tick) {
  double extra_ns = 0;
  for (const Use& use : pieces_.uses[tick]) {
    Piece piece = use.piece;
    Ranks valid = valid_[piece];
    unsigned rank = 0;
    if ((valid & 1) == 0) {
      rank = static_cast<unsigned>(std::countr_zero(valid & usable_[use.mode]));
      std::int64_t reads = (use.mode & kRead) != 0 ? pieces_.nbytes[piece] : 0;
      std::int64_t writes = (use.mode & kWrite) != 0 ? pieces_.nbytes[piece] : 0;
      const Tier& tier = machine_.tiers.at(rank);
      double reading = static_cast<double>(reads) * tier.read_ns;
      extra_ns += std::max(reading + static_cast<double>(writes) * tier.write_ns, 0.0);
      record_.slow_reads[rank] += reads;
      record_.slow_writes[rank] += writes;
    }
    if ((use.mode & kWrite) != 0 && (valid != bit(rank) || !copies_[piece].empty())) overwrite(piece, rank);
    next_use_[piece] = at_ + use.until;
    if (is_seen()) {
      see(piece);
      last_use_[piece] = at_;
    }
    note_change(piece);
  }
  double time_ns = pieces_.times[tick];
  if (extra_ns == 0) return time_ns;
  double moving = static_cast<double>(pieces_.reads[tick]) * machine_.fast_read_ns +
                  static_cast<double>(pieces_.writes[tick]) * machine_.fast_write_ns;
  double longer = time_ns + std::max(extra_ns - machine_.overlap * std::max(time_ns - moving, 0.0), 0.0);
  record_.slower_ns += longer - time_ns;
  return longer;
}

void Run::compute(std::size_t tick, double work) {
  double began = now_;
  links_.run_beside(true, now_);
  while (true) {
    double end = now_ + work * links_.slowdown();
    if (end < links_.next_end()) {
      now_ = end;
      break;
    }
    work -= (links_.next_end() - now_) / links_.slowdown();
    go_on();
    links_.start(now_);
    if (work <= 0) break;
  }
  links_.run_beside(false, now_);
  record_.span(SpanKind::Compute, tick, began, now_);
  if (asked_.checks_state) check_state();
}

void Run::go_on() {
  now_ = std::max(now_, links_.next_end());
  links_.advance(now_);
  place_unborn();
  if (asked_.checks_state) check_state();
}

void Run::bear(Piece piece) {
  if (reserved_[piece] != 0) grow_old(piece);
  if (unsigned rank = birth_rank(piece); rank != 0) {
    take(piece, rank);
  } else {
    unborn_.push_back(piece);
  }
}

// Until it has left the first tier, if it is on its way: after that it is an elder.
void Run::await_eviction(Piece piece) {
  double began = now_;
  while ((evicting_[piece] & 1) != 0) {
    links_.start(now_);
    if (links_.idle()) break;
    go_on();
  }
  if (now_ > began) record_.stall(static_cast<std::size_t>(at_) % n_ticks_, Stall::Room, began, now_);
}

void Run::issue(const Command& command) {
  Piece piece = pieces_.of[command.storage];
  unsigned source = command.source, target = command.target;
  std::int64_t due = at_ + static_cast<std::int64_t>((command.due + n_ticks_ - command.tick) % n_ticks_);
  if (command.verb == Verb::Drop) {
    drop(piece, source);
    return;
  }
  for (Copy* copy : copies_[piece]) {
    if (copy->target == target) {
      copy->due = std::min(copy->due, due);
      return;
    }
  }
  if ((valid_[piece] & bit(target)) != 0) {
    if ((evicting_[piece] & bit(target)) == 0) return;
    if (target != 0) {  // it has not left yet
      cancel_eviction(piece, target);
    } else if (!keep(piece)) {
      due_back_[piece] = due;
    }
    return;
  }
  bool is_half_gone = (reserved_[piece] & bit(target)) != 0 || (valid_[piece] == 0 && !copies_[piece].empty());
  if (is_half_gone) {
    if (target == 0) due_back_[piece] = std::min(due_back_[piece], due);
    return;
  }
  if ((valid_[piece] & bit(source)) == 0) {
    auto other = source_of(piece);
    if (command.verb == Verb::Evict || !other || !links_.between(*other, target)) return;
    source = *other;
  }
  if (command.verb == Verb::Evict && !has_room(piece, target)) {
    Command elsewhere = command;
    elsewhere.target = static_cast<Rank>(target_of(piece, source).value_or(target));
    if (elsewhere.target != target) return issue(elsewhere);
  }
  if (may_lie(piece, target)) put(piece, source, target, due);
}

}  // namespace ebbtide::simulate
