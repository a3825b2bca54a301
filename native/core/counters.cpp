// Steps, and readings of what the arena counts.
#include "arena.hpp"

namespace ebbtide {

void Arena::flush_traffic(Block& b) {
  auto kind = static_cast<std::size_t>(b.kind);
  counters_.evicted[kind] += b.evicted;
  counters_.fetched[kind] += b.fetched;
  counters_.written[kind] += b.written;
  b.evicted = b.fetched = b.written = 0;
}

Counters Arena::counters() {
  Lock lock(mutex_);
  return count();
}

Counters Arena::count() const {
  Counters c = counters_;
  budget_.read(c);
  room_.read(c);
  c.stall_ns = stalls_.by_cause();
  c.operators = step_.operators();
  c.cancelled = moves_.cancelled();
  c.made_anew = moves_.made_anew();
  c.looked_at = victims_.looked_at();
  c.copy_ns = mover_.copy_ns();
  c.areas = areas_.now();
  for (Rank rank = 1; rank <= tiers_.last(); ++rank) {
    c.tier_used.push_back(tiers_[rank].space().used);
    const PackingTier* packing = tiers_.packing(rank);
    c.tier_peak.push_back(packing != nullptr ? packing->packed_peak() : 0);
    c.tier_written.push_back(tiers_.written(rank));
    c.tier_read.push_back(tiers_.read_bytes(rank));
  }
  c.blocks = blocks_.live().size();
  c.tables_filled = blocks_.is_filled();
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    auto kind = static_cast<std::size_t>(b.kind);
    if (b.is_fast()) c.resident_kinds[kind] += b.paged_bytes;
    if (b.external_pins > 0) c.held += b.paged_bytes;
    c.evicted[kind] += b.evicted;
    c.fetched[kind] += b.fetched;
    c.written[kind] += b.written;
  }
  return c;
}

void Arena::reset_peaks() {
  Lock lock(mutex_);
  budget_.reset_peaks();
}

void Arena::reset_needs() {
  Lock lock(mutex_);
  counters_.largest_operator_bytes = counters_.largest_operator_used = counters_.largest_operand = 0;
  counters_.largest_operator.clear();
  room_.reset_needs();
}

void Arena::reset_trouble() {
  reset_needs();
  Lock lock(mutex_);
  room_.reset_trouble();
}

Counters Arena::begin_step(bool record) {
  if (in_child_) return {};
  Lock lock(mutex_);
  begin_stretch();
  for (BlockId id : blocks_.live()) flush_traffic(blocks_[id]);  // what happened between steps stays what it was then
  budget_.begin_step();
  Counters before = count();
  step_.begin(record);
  return before;
}

Counters Arena::end_step(bool completed) {
  if (in_child_) return {};
  Lock lock(mutex_);
  begin_stretch();
  step_.end(completed);
  for (BlockId id : blocks_.live()) flush_traffic(blocks_[id]);
  room_.end_step();
  budget_.end_step();
  return count();
}

}  // namespace ebbtide
