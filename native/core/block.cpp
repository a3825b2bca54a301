#include "block.hpp"

#include <cerrno>

#include "system.hpp"

namespace ebbtide {

namespace {

// Its transfer, which is busy.
const char* what_is_wrong_with_transfer(const Block& b) {
  const Transfer& t = b.transfer;
  const bool is_dead = b.state == State::Dead;
  if (t.source == t.target) return "a block moves from a tier to itself";
  if (t.brings == Brings::Pages) {
    if (!b.has_pages() && (!is_dead || b.remains == Remains::NoPages)) return "pages move that are not there";
    return t.source == b.home ? nullptr : "pages move from where they are not";
  }
  if (t.brings == Brings::Nothing) {
    return is_dead || b.state == State::Dirty || b.state == State::Absent ? nullptr : "what is moved in vain is still wanted";
  }
  switch (b.state) {
    case State::Dirty:
    case State::Untouched:
    case State::Blank:
    case State::Unmade:
      return "what is in no slower tier is copied, and nobody writes it";
    case State::Writing:
      return t.source == b.home && t.target > b.home ? nullptr : "a block is written from where it is not";
    case State::Reading:
      return t.target == kFast ? nullptr : "a block is read to a slower tier";
    case State::Clean:
    case State::Absent:
      return t.source != kFast && t.target != kFast ? nullptr : "a block comes or goes, and its state does not say so";
    case State::Dead:  // what is read drains
      return t.target == kFast ? nullptr : "a dead block is written for somebody";
  }
  return nullptr;
}

}  // namespace

const char* what_is_wrong(const Block& b) {
  const bool moves = b.transfer.busy();
  if (b.nbytes > b.paged_bytes || b.paged_bytes != b.shape.bytes() || b.place.count != b.shape.pages)
    return "a block holds less than it stores";
  const bool is_elsewhere = b.state == State::Clean || b.state == State::Absent || b.state == State::Reading;
  const bool by_recipe_alone = b.valid == 0 && b.recipe != 0 && b.state == State::Clean;
  if ((b.valid != 0) != is_elsewhere && !by_recipe_alone) return "a block's state and its tiers differ";
  if (b.recipe != 0 && !is_elsewhere && b.state != State::Unmade) return "what somebody writes has a recipe";
  if (b.state == State::Unmade && b.recipe == 0) return "nobody can make what is not there";
  if ((b.state == State::Writing || b.state == State::Reading) && !moves) return "a move without a transfer";
  if (b.remains != Remains::NoPages && b.state != State::Dead) return "something remains of a block that lives";
  if (b.home != kFast && !b.has_pages() && b.remains == Remains::NoPages)
    return "a block without pages is in a tier that is used in place";
  if (b.heirs != Heirs::None && !b.has_pages() && b.remains == Remains::NoPages) return "children have pages that are not there";
  if (b.guards >= 1u << 31) return "it was unguarded more often than guarded";
  if (b.state == State::Untouched && b.pins > 0) return "an operator holds what nobody has used";
  return moves ? what_is_wrong_with_transfer(b) : nullptr;
}

#ifdef EBBTIDE_CHECKS
void check(const Block& b) {
  if (const char* what = what_is_wrong(b)) fatal(what, EINVAL);
}
#endif

}  // namespace ebbtide
