// What a simulation notes while it runs: levels, stalls, spans, and counts. Figures are sums over the steps since `clear`, until
// `finish` makes them a step's mean. Spans, levels and what was queued are of the last step.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ebbtide::simulate {

enum class Stall : std::uint8_t { Room, Late, Demand };

// Of a timeline, in ns from the step's beginning. A copy's lane is its link; kCompute is the operations' lane, with stalls.
enum class SpanKind : std::uint8_t { StallRoom, StallLate, StallDemand, Compute, Evict, Fetch };
struct Span {
  static constexpr std::int64_t kCompute = -1;
  std::int64_t lane;
  SpanKind kind;
  std::int64_t start, stop;
  std::int64_t tick;             // -1: of a copy
  std::int64_t storage, nbytes;  // of a copy; else -1 and 0
};
struct Level {
  std::int64_t rank, time, nbytes;
};
struct Queued {  // a copy, when it was put on its link
  std::int64_t tick, storage, source, target;
};

struct Record {
  std::vector<std::int64_t> used;  // the room taken on each tier, now

  double began = 0;  // the step at hand
  std::vector<double> starts, stalls;  // when compute reached each tick, and the end; how long each tick waited
  std::array<double, 3> by_cause{};
  std::int64_t rescues = 0, demand_fetches = 0, demand_bytes = 0, n_uses = 0, hits = 0;
  double slower_ns = 0;
  std::vector<std::int64_t> slow_reads, slow_writes;  // by tier
  std::vector<double> area;                           // of room taken, in byte ns
  std::vector<std::int64_t> peak;
  std::vector<std::int64_t> moved_bytes;  // by link; until `finish`, what moved before `clear`

  bool is_kept = false;  // whether the rest is noted
  std::vector<Span> spans;
  std::vector<Level> levels;
  std::vector<Queued> queued;

  explicit Record(std::size_t n_tiers) : used(n_tiers), area(n_tiers), peak(n_tiers), since_(n_tiers) {}

  void clear(std::size_t n_ticks, std::vector<std::int64_t>&& moved, double now) {
    starts.assign(n_ticks + 1, 0.0);
    stalls.assign(n_ticks, 0.0);
    by_cause.fill(0.0);
    rescues = demand_fetches = demand_bytes = n_uses = hits = 0;
    slower_ns = 0;
    slow_reads.assign(used.size(), 0);
    slow_writes.assign(used.size(), 0);
    moved_bytes = std::move(moved);
    since_.assign(used.size(), now);
    area.assign(used.size(), 0.0);
    peak = used;
  }

  void begin(double now, bool keep) {
    began = now;
    is_kept = keep;
    if (!is_kept) return;
    for (std::size_t rank = 0; rank < used.size(); ++rank) note_level(rank, now);
  }

  void end(double now) {
    starts.back() += now - began;
    for (unsigned rank = 0; rank < used.size(); ++rank) change(rank, 0, now);
  }

  void finish(const std::vector<std::int64_t>& moved, std::int64_t n_steps) {
    for (std::size_t link = 0; link < moved_bytes.size(); ++link) moved_bytes[link] = moved[link] - moved_bytes[link];
    for (auto* times : {&starts, &stalls, &area}) {
      for (double& sum : *times) sum /= static_cast<double>(n_steps);
    }
    for (double& sum : by_cause) sum /= static_cast<double>(n_steps);
    slower_ns /= static_cast<double>(n_steps);
    for (auto* counts : {&slow_reads, &slow_writes, &moved_bytes}) {
      for (std::int64_t& sum : *counts) sum = (sum + n_steps / 2) / n_steps;
    }
    for (auto* sum : {&rescues, &demand_fetches, &demand_bytes, &n_uses, &hits}) *sum = (*sum + n_steps / 2) / n_steps;
  }

  // The room taken on a tier.
  void change(unsigned rank, std::int64_t nbytes, double now) {
    area[rank] += static_cast<double>(used[rank]) * (now - since_[rank]);
    since_[rank] = now;
    used[rank] += nbytes;
    if (used[rank] > peak[rank]) peak[rank] = used[rank];
    if (is_kept && nbytes != 0) note_level(rank, now);
  }

  // Of what was there before its tick: how many were asked for, and how many of them could not be used yet.
  void uses(std::int64_t n, std::int64_t n_missing) {
    n_uses += n;
    hits += n - n_missing;
  }

  void demand_fetch(std::int64_t nbytes) {
    ++rescues;
    ++demand_fetches;
    demand_bytes += nbytes;
  }

  void stall(std::size_t tick, Stall cause, double from, double now) {
    by_cause[static_cast<std::size_t>(cause)] += now - from;
    stalls[tick] += now - from;
    span(static_cast<SpanKind>(cause), tick, from, now);
  }

  // On the operations' lane.
  void span(SpanKind kind, std::size_t tick, double from, double now) {
    if (!is_kept) return;
    std::int64_t start = rounded(from), stop = rounded(now);
    if (stop > start) spans.push_back({Span::kCompute, kind, start, stop, static_cast<std::int64_t>(tick), -1, 0});
  }

  void copied(std::size_t link, SpanKind kind, double from, double now, std::int64_t storage, std::int64_t nbytes) {
    std::int64_t start = std::max<std::int64_t>(rounded(from), 0);
    if (is_kept) spans.push_back({static_cast<std::int64_t>(link), kind, start, rounded(now), -1, storage, nbytes});
  }

 private:
  void note_level(std::size_t rank, double now) {
    levels.push_back({static_cast<std::int64_t>(rank), rounded(now), std::max<std::int64_t>(used[rank], 0)});
  }
  std::int64_t rounded(double now) const { return std::llrint(now - began); }  // a half to the even one

  std::vector<double> since_;
};

}  // namespace ebbtide::simulate
