// What storages' contents would take in a tier that packs them: looked at while a step is recorded, so that it can be planned.
//
// [Note: looked at]  Contents lie idle as the last operator that wrote them left them, so they are looked at when an
// operator that wrote them ends, and those that a step only reads when their first operator does: they are pinned then. What
// an outer operator holds too may still be written by it, and waits for its end. The last look counts. Steps that follow a
// schedule are not looked at: they have been. The time that looking takes is no operator's, and is taken off like stalls.
#include <vector>

#include "arena.hpp"

namespace ebbtide {

void Arena::look_at_contents() {
  struct Look {
    BlockId id;
    std::uint32_t generation;
    const char* address;
    std::uint64_t bytes;
  };
  const std::int64_t begun = now_ns();
  std::vector<Look> looks;
  {
    Lock lock(mutex_);
    const OperatorStack& stack = this_operator_stack();
    if (in_child_ || replay_.active() || stack.of != &stacks_ || stack.operators.empty()) return;
    const bool is_inner = stack.operators.size() > 1;
    for (std::size_t i = stack.operators.back().first_pin; i < stack.pins.size(); ++i) {
      const Pin& pin = stack.pins[i];
      const Block& b = blocks_[pin.id];
      if (b.generation != pin.generation || !b.has_pages()) continue;  // it died in the operator, say
      if (pin.access != Access::Read) tape_.packs_to(b.recorded, kUnknown);
      bool is_held = b.pins > 1 || (pin.born_here && is_inner);
      if (!is_held && !tape_.knows_packed(b.recorded)) looks.push_back({pin.id, pin.generation, b.address, moved_bytes(b)});
    }
  }
  if (looks.empty()) return;
  std::vector<std::int64_t> found;
  for (const Look& look : looks) {  // without the mutex [Note: invariants, I5]
    auto packed = tiers_.fastest_packing()->packed_bytes(look.address, look.bytes);
    found.push_back(packed ? static_cast<std::int64_t>(*packed) : kNotPacked);
  }
  Lock lock(mutex_);
  for (std::size_t i = 0; i < looks.size(); ++i) {
    const Block& b = blocks_[looks[i].id];
    if (b.generation == looks[i].generation) tape_.packs_to(b.recorded, found[i]);
  }
  step_.was_apart(now_ns() - begun);
}

}  // namespace ebbtide
