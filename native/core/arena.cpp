// Birth and death of storages. What happens to them otherwise is in the parts that the arena is made of.
#include "arena.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace ebbtide {

Arena::Arena(const Options& options, Tiers::List slower_tiers)
    : options_(options),
      areas_(options.most_areas),
      memory_(options.huge_region_bytes, options.small_region_bytes),
      tiers_(std::move(slower_tiers), {options.huge_region_bytes, options.small_region_bytes}),
      replay_(blocks_, tiers_.last()),
      mover_(blocks_, tape_, options_.hook, tiers_.last(), moves_),
      moves_(
          blocks_, memory_, areas_, tiers_, budget_, mover_, tape_, options_.hook,
          [](void* arena) { static_cast<Arena*>(arena)->step_.start_prefetches(); }, this),
      victims_(blocks_, moves_, areas_, stacks_, replay_, stretch_, recency_, refetches_),
      room_(blocks_, memory_, areas_, tiers_, budget_, mover_, moves_, victims_, stacks_, stretch_, stalls_, options.watchdog_ns,
            options.unpins_come, options.ask_to_make),
      step_(blocks_, tape_, replay_, refetches_, stalls_, budget_, mover_, moves_, victims_, room_, stacks_),
      chaos_rate_(options.chaos_rate),
      chaos_state_(options.chaos_seed * 2 + 1) {
  set_least_piece(options.least_piece);
  areas_.watch(memory_);
  mover_.start(mutex_, options.io_threads * tiers_.last());
  governor_ = std::thread([this] { govern(); });
}

Arena::~Arena() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    stacks_.disown();
    governor_wakes_.notify_all();
  }
  mover_.stop(mutex_);
  governor_.join();
}

// --- storages

BlockId Arena::find_live(const void* p) const {
  BlockId id = find(p);
  return id != kNoBlock && blocks_[id].state != State::Dead ? id : kNoBlock;
}

void* Arena::allocate(std::size_t nbytes, bool untouched) {
  Lock lock(mutex_);
  begin_stretch();
  chaos();
  room_.spare_areas();
  if (nbytes > kMostBytes) throw ArenaError(kNoAddressSpace);
  Shape shape = shape_of(nbytes);
  reserve_ahead(nbytes, shape);
  if (std::uint64_t each = piece_bytes(nbytes, least_piece_); each > 0)
    return allocate_pieces(lock, nbytes, each, shape, untouched);
  Rank home = step_.birth(nbytes);
  bool found_room = home == kFast && room_.try_claim(shape);
  if (!found_room && home == kFast && victims_.policy().born_in_place) home = 1;
  BlockId id = home != kFast ? make_in_place(shape, nbytes, home) : kNoBlock;
  bool is_fast = id == kNoBlock;
  if (is_fast) {
    Claim claim = found_room ? Claim::Granted : wait_for_room(lock, shape);
    if (claim != Claim::Granted) throw ArenaError(no_room(nbytes, claim));
    Run place = memory_.region(shape).allocate_pages(shape.pages, areas_.run_short());
    id = make_block(shape, nbytes, place);
    if (id == kNoBlock) {
      memory_.region(shape).free_pages(place);
      throw ArenaError(kTooManyStorages);
    }
    budget_.account_resident(static_cast<std::int64_t>(shape.bytes()));
  }
  Block& b = blocks_[id];
  b.kind = tape_.in_step() ? Kind::Activation : Kind::Other;
  b.transient = is_fast && !found_room;
  b.last_use = ++recency_.now;
  moves_.contents_change(id);
  blocks_.add_live(id);
  budget_.account_live(static_cast<std::int64_t>(nbytes));
  check(b);
  OperatorStack& stack = this_operator_stack();
  bool in_operator = stack.of == &stacks_ && !stack.operators.empty();
  step_.born(id, in_operator);
  if (in_operator) pin_operand(stack, id, Access::Write, true, nbytes, b.paged_bytes);
  if ((room_.short_lately() || victims_.policy().ahead_of_pressure) && !replay_.active()) room_.evict_ahead();
  return b.address;
}

BlockId Arena::make_block(const Shape& shape, std::size_t nbytes, Run place) {
  BlockId id = blocks_.create();
  if (id == kNoBlock) return id;
  Region& r = memory_.region(shape);
  r.set_owner(place, id);
  Block& b = blocks_[id];
  b.address = r.address(place.first);
  b.nbytes = nbytes;
  b.paged_bytes = shape.bytes();
  b.shape = shape;
  b.place = place;
  b.state = State::Dirty;
  return id;
}

// In a tier of at least this rank that is used in place; kNoBlock: none has space.
BlockId Arena::make_in_place(const Shape& shape, std::size_t nbytes, Rank rank) {
  Region& r = memory_.region(shape);
  Run place = r.take_vacant(shape.pages);
  BlockId id = make_block(shape, nbytes, place);
  if (id != kNoBlock) {
    if (settle_in_place(id, rank)) return id;
    r.set_owner(place, kNoBlock);
    blocks_.destroy(id);
  }
  r.free_address(place);
  return kNoBlock;
}

// New pages for a place that has none. False: it has none.
bool Arena::settle_in_place(BlockId id, Rank rank) {
  Region& r = memory_.region(blocks_[id]);
  r.give_new(blocks_[id].place);
  Extent extent = memory_.extent(blocks_[id]);
  Rank home = tiers_.reserve(extent, rank, tiers_.last() + 1u, true, false);
  if (home != kFast && moves_.settle(id, home)) return true;
  if (home != kFast) tiers_.release(extent, bit(home));
  r.decommit(blocks_[id].place);
  return false;
}

Claim Arena::wait_for_room(Lock& lock, const Shape& shape) {
  if (options_.labels.begin == nullptr) return room_.claim(lock, shape);
  Claim claim;
  {
    WaitLabel label(options_.labels, lock, Stall::Room);
    claim = room_.claim(lock, shape);
    if (claim == Claim::Granted) room_.withdraw(shape);  // others take it while the label lets go of the mutex
  }
  return claim == Claim::Granted ? room_.claim(lock, shape) : claim;
}

std::string Arena::no_room(std::uint64_t nbytes, Claim claim) const {
  if (claim == Claim::MachineHasNoMore) {
    return std::string("no room for ") + BytesText(nbytes).text +
           " beside what else an operator needs at once: the process has " + BytesText(anonymous_bytes(getpid())).text +
           ", and this machine or its container " + BytesText(budget_.machine_bytes()).text +
           " in all; use a smaller batch (PyTorch's words: DefaultCPUAllocator: can't allocate memory)";
  }
  const auto [where, cure] = tiers_.failed().explain(tiers_.error());
  return std::string("no room for ") + BytesText(nbytes).text + ": writing to " + where + " failed (" +
         std::strerror(tiers_.error()) + "); " + cure;
}

// Space in the slowest tier for a new block, before it can be needed: a disk that is full then leaves no way out, unless
// faster tiers take all there is.
void Arena::reserve_ahead(std::size_t nbytes, const Shape& shape) {
  Region& r = memory_.region(shape);
  if (!r.has_space(shape.pages)) throw ArenaError(kNoAddressSpace);
  if (off_the_record) return;  // what is made anew takes the place of what has some
  if (!budget_.bounded() || budget_.live() + untouched_ + nbytes <= budget_.limit()) return;
  Tier& slowest = tiers_[tiers_.last()];
  if (slowest.space().capacity != 0) return;  // what it has is for whoever leaves [Note: without bounds]
  auto reserve = [&](std::uint64_t places) { return slowest.reserve({shape.page == kHugePage ? 0u : 1u, 0, places * r.page()}); };
  int error = reserve(r.high_water() + shape.pages);
  if (error != 0) error = reserve(r.owned_with(shape.pages));  // much may have died since the disk was full
  if (error != 0) {
    if (budget_.live() + untouched_ + nbytes <= tiers_.in_place_bytes()) return;  // what has come back keeps its place there
    const auto [where, cure] = slowest.explain(error);
    throw ArenaError(std::string("cannot reserve ") + BytesText((r.high_water() + shape.pages) * r.page()).text + " in " + where +
                     ": " + std::strerror(error) + "; " + cure);
  }
}

void Arena::release(void* address) {
  Lock lock(mutex_);
  if (in_child_) return;
  room_.spare_areas();  // pages that were read-only are writable when they are cached
  BlockId id = find_live(address);
  if (id == kNoBlock) fatal("release of an address that is no storage", EINVAL);
  begin_stretch();
  release_storage(blocks_[id].address);
  mover_.changed();
  step_.start_prefetches();
}

void Arena::release_block(BlockId id) {
  Block& b = blocks_[id];
  flush_traffic(b);
  step_.died(id);
  blocks_.remove_live(id);
  budget_.account_live(-static_cast<std::int64_t>(b.nbytes));
  ++b.generation;
  OperatorStack& stack = this_operator_stack();
  if (b.pins > 0 && stack.of == &stacks_ && !stack.operators.empty() && b.pinned_by == stack.innermost()) {
    std::uint64_t& bytes = stack.operators.back().bytes;
    bytes -= std::min(bytes, b.paged_bytes);
  }
  b.pins = 0;
  moves_.free(id);
}

void Arena::classify(const void* address, Kind kind) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock) return;
  each_piece({address}, [&](BlockId piece, std::uint64_t) {
    blocks_[piece].kind = kind;
    blocks_[piece].classified = true;
  });
}

State Arena::state(const void* address) {
  Lock lock(mutex_);
  BlockId id = find(address);
  return id == kNoBlock ? State::Dead : blocks_[id].state;
}

RankSet Arena::tiers_with(const void* address) {
  Lock lock(mutex_);
  BlockId id = find_live(address);
  if (id == kNoBlock) return 0;
  const Block& b = blocks_[id];
  return b.has_pages() && b.home != kFast ? b.valid | bit(b.home) : b.valid;
}

}  // namespace ebbtide
