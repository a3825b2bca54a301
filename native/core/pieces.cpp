// Storages in pieces: their birth, their first use, and the pieces that a range of bytes lies in [Note: pieces].
#include <cstring>

#include "arena.hpp"

namespace ebbtide {

bool Arena::fits(std::uint64_t bytes) const { return !budget_.bounded() || bytes <= budget_.limit() - budget_.limit() / 4; }

void Arena::set_least_piece(std::uint64_t bytes) {
  Lock lock(mutex_);
  least_piece_ = bytes;
  if (bytes > 0) least_in_pieces_ = std::min(least_in_pieces_, 2 * bytes);
}

// In an operator whose results need not be there as a whole, pieces that do not fit are born when its kernel reaches them.
bool Arena::is_born_at_once(std::uint64_t nbytes, std::uint64_t each, bool untouched) {
  OperatorStack& stack = this_operator_stack();
  if (stack.of != &stacks_ || stack.operators.empty()) return !untouched;
  Operator& op = stack.operators.back();
  if (op.work == Work::Itself || fits(op.bytes + nbytes)) return true;
  op.by_faults = true;
  op.bytes += std::min(nbytes, kPiecesInOrder * each);
  op.peak = std::max(op.peak, op.bytes);
  return false;
}

void* Arena::allocate_pieces(Lock& lock, std::size_t nbytes, std::uint64_t each, const Shape& shape, bool untouched) {
  bool at_once = is_born_at_once(nbytes, each, untouched);
  Region& r = memory_.region(shape);
  bool whole = at_once && step_.birth(each) == kFast && room_.try_claim(shape);
  Run place = whole ? r.allocate_pages(shape.pages, areas_.run_short()) : r.take_vacant(shape.pages);
  char* const address = r.address(place.first);
  std::uint64_t count = nbytes / each;
  auto pages = static_cast<std::uint32_t>(each / r.page());
  ++wholes_;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t before = i * each, after = i + 1 < count ? nbytes - before - each : 0;
    auto skipped = static_cast<std::uint32_t>(i) * pages;
    Run part{place.first + skipped, after > 0 ? pages : place.count - skipped};
    BlockId id = make_block({r.page(), part.count}, nbytes - before - after, part);
    if (id == kNoBlock) {
      for (char* made = address; i > 0; --i, made += each) forget_piece(find(made));
      whole ? r.free_pages(place) : r.free_address(place);
      throw ArenaError(kTooManyStorages);
    }
    Block& b = blocks_[id];
    b.before = before;
    b.after = after;
    b.whole = wholes_;
    b.line = tape_.line();
    b.state = State::Untouched;
    untouched_ += b.nbytes;
    moves_.contents_change(id);
  }
  bool in_operator = this_operator_stack().of == &stacks_ && !this_operator_stack().operators.empty();
  for (std::uint64_t i = 0; at_once && i < count; ++i) bear(lock, find(address + i * each), whole, in_operator);
  if (at_once && room_.short_lately() && !replay_.active()) room_.evict_ahead();
  return address;
}

// Like Arena::allocate(), which waits for room and throws where none is had; `has_pages`: it has its room and its pages.
void Arena::bear(Lock& lock, BlockId id, bool has_pages, bool in_operator) {
  Block& b = blocks_[id];
  Rank home = has_pages ? kFast : step_.birth(b.nbytes);
  bool found_room = has_pages || (home == kFast && room_.try_claim(b.shape));
  if (!found_room && home == kFast && victims_.policy().born_in_place) home = 1;
  bool settled = home != kFast && settle_in_place(id, home);
  Claim claim = settled || found_room ? Claim::Granted : wait_for_room(lock, b.shape);
  if (claim != Claim::Granted) {
    std::string why = no_room(b.before + b.nbytes + b.after, claim);
    release_storage(b.address - b.before);
    throw ArenaError(why);
  }
  touch(id, in_operator, false);
  if (settled || has_pages) {
    b.state = State::Dirty;
    if (has_pages) budget_.account_resident(static_cast<std::int64_t>(b.paged_bytes));
  } else {
    moves_.give_pages(id);
  }
  b.transient = !settled && !found_room;
  if (in_operator) pin_operand(this_operator_stack(), id, Access::Write, true, b.nbytes, b.paged_bytes);
}

// Somebody uses it for the first time. It is blank then: its pages come with the room for them.
void Arena::touch(BlockId id, bool in_operator, bool by_fault) {
  Block& b = blocks_[id];
  untouched_ -= b.nbytes;
  b.state = State::Blank;
  if (!b.classified) b.kind = tape_.in_step() ? Kind::Activation : Kind::Other;
  b.last_use = ++recency_.now;
  blocks_.add_live(id);
  budget_.account_live(static_cast<std::int64_t>(b.nbytes));
  check(b);
  by_fault ? step_.born_by_fault(id) : step_.born(id, in_operator);
}

void Arena::forget_piece(BlockId id) {
  untouched_ -= blocks_[id].nbytes;
  memory_.region(blocks_[id]).set_owner(blocks_[id].place, kNoBlock);
  blocks_[id].state = State::Dead;
  blocks_.destroy(id);
}

void Arena::release_storage(char* address) {
  for (bool last = false; !last;) {
    BlockId id = find_live(address);
    Block& b = blocks_[id];
    last = b.after == 0;
    address += b.paged_bytes;
    if (b.state == State::Untouched) {
      untouched_ -= b.nbytes;
      ++b.generation;
      moves_.free(id);
    } else {
      release_block(id);
    }
  }
}

// The pieces of the storage at this address that `nbytes` from there lie in; of the whole storage, if that is 0.
Operand Arena::operand_at(const void* address, std::uint64_t nbytes) const {
  BlockId id = find_live(address);
  if (id == kNoBlock) return {address};
  const Block& b = blocks_[id];
  const char* begins = b.address - b.before;
  auto offset = static_cast<std::uint64_t>(static_cast<const char*>(address) - begins);
  return {begins, Access::ReadWrite, 0, nbytes == 0 ? ByteRange{} : ByteRange{offset, offset + nbytes}};
}

std::uint64_t Arena::size_of(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  return id == kNoBlock ? 0 : blocks_[id].before + blocks_[id].nbytes + blocks_[id].after;
}

bool Arena::comes_by_faults(const Operand& operand) {
  if (in_child_) return false;
  Lock lock(mutex_);
  return go_by_faults({&operand, 1});
}

bool Arena::is_resident(const void* address, std::uint64_t nbytes) {
  Lock lock(mutex_);
  bool resident = true;
  each_piece(operand_at(address, nbytes), [&](BlockId id, std::uint64_t) {
    State state = blocks_[id].state;
    resident = resident && !blocks_[id].is_absent() && state != State::Reading;
  });
  return resident;
}

}  // namespace ebbtide
