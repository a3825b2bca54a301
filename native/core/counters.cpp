// Readings of what the arena counts, and what is counted anew.
#include "arena.hpp"

#include <algorithm>

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
  return reading();
}

Counters Arena::reading() const {
  Counters c = counters_;
  c.message = trouble_;
  c.live = live_;
  c.resident = resident_;
  for (BlockId id : blocks_.live()) {
    const Block& b = blocks_[id];
    if (b.state == State::Clean) c.clean += b.paged_bytes;
    if (b.state == State::Dirty || b.state == State::Writing) c.dirty += b.paged_bytes;
    auto kind = static_cast<std::size_t>(b.kind);
    c.evicted[kind] += b.evicted;
    c.fetched[kind] += b.fetched;
    c.written[kind] += b.written;
  }
  c.reserved = reserved_;
  c.areas = areas();
  c.spill = huge_.spill().reserved() + small_.spill().reserved();
  c.blocks = blocks_.live().size();
  c.arena_limit = limit_;
  c.process_limit = process_limit_;
  c.unmanaged = unmanaged_.bytes();
  std::int64_t now = now_ns();
  c.reserved_byte_ns += static_cast<double>(reserved_) * static_cast<double>(now - reserved_since_ns_);
  c.resident_byte_ns += static_cast<double>(resident_) * static_cast<double>(now - resident_since_ns_);
  c.measured_ns = now - peaks_reset_ns_;
  return c;
}

void Arena::reset_peaks() {
  Lock lock(mutex_);
  counters_.live_peak = live_;
  counters_.reserved_peak = reserved_;
  counters_.resident_peak = resident_;
  counters_.reserved_byte_ns = counters_.resident_byte_ns = 0.0;
  reserved_since_ns_ = resident_since_ns_ = peaks_reset_ns_ = now_ns();
}

void Arena::reset_needs() {
  Lock lock(mutex_);
  counters_.largest_operator_bytes = counters_.largest_operator_used = counters_.largest_operand = 0;
  counters_.stuck_at_bytes = 0;
  counters_.largest_operator.clear();
}

void Arena::reset_trouble() {
  reset_needs();
  Lock lock(mutex_);
  counters_.over_budget = false;
  trouble_[0] = '\0';
}

}  // namespace ebbtide
