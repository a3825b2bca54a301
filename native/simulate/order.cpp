#include "order.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace ebbtide {

Order::Order(const Policy& policy, const Columns& columns, unsigned n_tiers, Score score)
    : policy_(policy), score_(std::move(score)), columns_(columns), tiers_(n_tiers) {
  std::size_t count = columns.valid.size();
  for (std::size_t size : {columns.evicting.size(), columns.nbytes.size(), columns.last_use.size(), columns.next_use.size(),
                           columns.moves.size(), columns.transient.size()}) {
    if (size != count) throw std::invalid_argument("the columns differ in length");
  }
}

bool Order::is_there(BlockId piece, unsigned tier) const {
  return columns_.moves[piece] != 0 && (columns_.valid[piece] & ~columns_.evicting[piece]) >> tier & 1;
}

bool Order::is_clean(BlockId piece, unsigned tier) const { return (columns_.valid[piece] & ~(std::uint64_t{1} << tier)) != 0; }

std::size_t Order::line_of(BlockId piece, unsigned tier) const {
  return (columns_.transient[piece] != 0 ? 2 : 0) + (is_clean(piece, tier) ? 1 : 0);
}

std::int64_t Order::key(BlockId piece) const {
  return policy_.age == Age::UntilUse ? -columns_.next_use[piece] : columns_.last_use[piece];
}

Candidate Order::candidate(BlockId piece, unsigned tier, std::int64_t now) const {
  std::int64_t age = policy_.age == Age::UntilUse ? columns_.next_use[piece] - now : now - columns_.last_use[piece];
  return {piece,
          Shield::None,
          is_clean(piece, tier),
          columns_.nbytes[piece],
          static_cast<std::uint64_t>(std::max<std::int64_t>(age, 0)),
          columns_.transient[piece] != 0};
}

void Order::changed(BlockId piece) {
  for (unsigned tier = 0; tier < tiers_.size(); ++tier) {
    if (tiers_[tier].asked && is_there(piece, tier)) join(piece, tier);
  }
}

void Order::join(BlockId piece, unsigned tier) {
  Line& line = tiers_[tier].lines[line_of(piece, tier)];
  line.push_back({key(piece), piece});
  std::ranges::push_heap(line, std::greater{});
}

// Anew, at the first question and when too many have become stale.
void Order::fill(unsigned tier) {
  tiers_[tier].asked = true;
  for (Line& line : tiers_[tier].lines) line.clear();
  for (BlockId piece = 0; piece < columns_.valid.size(); ++piece) {
    if (is_there(piece, tier)) tiers_[tier].lines[line_of(piece, tier)].push_back({key(piece), piece});
  }
  for (Line& line : tiers_[tier].lines) std::ranges::make_heap(line, std::greater{});
}

// Whether anybody in the line may be evicted; who that is stands at its head then. Those who may not go to `passed`.
bool Order::has_head(unsigned tier, std::size_t number, const std::function<bool(BlockId)>& evictable, Line& passed) {
  Line& line = tiers_[tier].lines[number];
  while (!line.empty()) {
    Entry head = line.front();
    bool stale = head.key != key(head.piece) || !is_there(head.piece, tier) || line_of(head.piece, tier) != number;
    bool twice = !passed.empty() && passed.back() == head;  // equal ones follow one another
    if (!stale && !twice && evictable(head.piece)) return true;
    if (!stale && !twice) passed.push_back(head);
    std::ranges::pop_heap(line, std::greater{});
    line.pop_back();
  }
  return false;
}

// All candidates are looked at anew: what a score makes of them may change as time goes by.
std::vector<BlockId> Order::highest(std::uint64_t needed, std::int64_t now, const std::function<bool(BlockId)>& evictable) const {
  std::vector<Candidate> all;
  for (BlockId piece = 0; piece < columns_.valid.size(); ++piece) {
    if (is_there(piece, 0) && evictable(piece)) all.push_back(candidate(piece, 0, now));
  }
  std::vector<double> scores = score_(all);
  if (scores.size() != all.size()) throw std::invalid_argument("a policy must score each candidate once");
  std::vector<std::size_t> places(all.size());
  std::iota(places.begin(), places.end(), 0);
  std::ranges::stable_sort(places, std::greater{}, [&](std::size_t place) { return scores[place]; });
  std::vector<BlockId> chosen;
  std::uint64_t covered = 0;
  for (auto place = places.begin(); covered < needed && place != places.end(); ++place) {
    chosen.push_back(all[*place].id);
    covered += all[*place].bytes;
  }
  return chosen;
}

std::vector<BlockId> Order::victims(unsigned tier, std::uint64_t needed, std::int64_t now,
                                    const std::function<bool(BlockId)>& evictable) {
  if (score_ && tier == 0) return highest(needed, now, evictable);
  auto& lines = tiers_.at(tier).lines;
  std::size_t waiting = 0;
  for (const Line& line : lines) waiting += line.size();
  if (!tiers_[tier].asked || waiting > 4 * columns_.valid.size() + 1000) fill(tier);
  std::vector<BlockId> chosen;
  std::array<Line, 4> passed;  // and chosen: both remain in line, until they are gone
  std::array<bool, 4> has_one;
  for (std::size_t i = 0; i < lines.size(); ++i) has_one[i] = has_head(tier, i, evictable, passed[i]);
  for (std::uint64_t covered = 0; covered < needed;) {
    std::array<Candidate, 4> heads;
    std::size_t count = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (has_one[i]) heads[count++] = candidate(lines[i].front().piece, tier, now);
    }
    if (choose_victims(std::span(heads).first(count), 1, policy_) == 0) break;
    std::size_t from = line_of(heads[0].id, tier);
    Line& line = lines[from];
    passed[from].push_back(line.front());
    std::ranges::pop_heap(line, std::greater{});
    line.pop_back();
    chosen.push_back(heads[0].id);
    covered += heads[0].bytes;
    has_one[from] = has_head(tier, from, evictable, passed[from]);
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const Entry& entry : passed[i]) {
      lines[i].push_back(entry);
      std::ranges::push_heap(lines[i], std::greater{});
    }
  }
  return chosen;
}

}  // namespace ebbtide
