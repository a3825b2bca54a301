// Storages in pieces: each piece moves on its own, operators need those that they touch, and what nobody touched takes nothing.
#include <cstring>
#include <thread>

#include "check.hpp"

using namespace ebbtide;

namespace {

constexpr std::size_t kLeast = 4 * kMiB;

Arena& make_arena_in_pieces(std::uint64_t limit, Options options = {}) {
  options.least_piece = kLeast;
  return make_arena(limit, options);
}

char* piece(void* storage, std::size_t number) { return static_cast<char*>(storage) + number * kLeast; }

}  // namespace

TEST(pieces_are_a_sixteenth_of_a_storage_within_limits_and_the_last_has_the_rest) {
  CHECK(piece_bytes(2 * kPiece - 1, kPiece) == 0 && piece_bytes(100 * kPiece, 0) == 0);
  CHECK(piece_bytes(2 * kPiece, kPiece) == kPiece && piece_bytes(16 * kPiece, kPiece) == kPiece);
  CHECK(piece_bytes(32 * kPiece - 1, kPiece) == 2 * kPiece && piece_bytes(1000 * kPiece, kPiece) == 4 * kPiece);
  Arena& arena = make_arena_in_pieces(0);
  void* p = arena.allocate(3 * kLeast - 5);  // two pieces
  CHECK(arena.size_of(p) == 3 * kLeast - 5 && arena.size_of(piece(p, 2)) == 3 * kLeast - 5);
  CHECK(arena.counters().blocks == 2 && arena.counters().live == 3 * kLeast - 5 && arena.counters().reserved == 3 * kLeast);
  arena.release(p);
  CHECK(arena.counters().blocks == 0 && arena.counters().live == 0);
  CHECK(arena.allocate(3 * kLeast - 5) == p && arena.counters().reserved == 3 * kLeast);  // on the pages that it left
}

TEST(an_operator_on_a_slice_needs_the_pieces_that_it_lies_in) {
  Arena& arena = make_arena_in_pieces(3 * kLeast);
  void* p = arena.allocate(8 * kLeast);  // more than there is: it is filled piece by piece
  fill(p, 8 * kLeast, 1);
  CHECK(!arena.counters().over_budget && arena.counters().written[4] >= 5 * kLeast);
  for (std::size_t i = 0; i < 8; ++i) {
    const Operand slice[] = {{p, Access::Read, kMiB, {i * kLeast + kMiB, i * kLeast + 2 * kMiB}}};
    std::uint64_t faults = arena.counters().faults;
    arena.enter("slice", slice, Work::Itself);
    CHECK(arena.state(piece(p, i)) == State::Clean || arena.state(piece(p, i)) == State::Dirty);
    CHECK(filled(piece(p, 0), 0, 1) && arena.counters().faults == faults);
    arena.exit();
  }
  const Operand two[] = {{p, Access::ReadWrite, 0, {2 * kLeast - 4, 2 * kLeast + 4}}};
  arena.enter("across", two, Work::Itself);
  CHECK(arena.state(piece(p, 1)) != State::Absent && arena.state(piece(p, 2)) != State::Absent);
  arena.exit();
  Counters c = arena.counters();
  CHECK(c.largest_operator_bytes == 2 * kLeast && !c.over_budget && c.reserved_peak <= 3 * kLeast);
  CHECK(filled(p, 8 * kLeast, 1));
  arena.check_invariants();
  arena.release(p);
  CHECK(arena.counters().live == 0);
}

TEST(what_nobody_touched_takes_no_memory_and_no_traffic) {
  Arena& arena = make_arena_in_pieces(4 * kLeast);
  void* p = arena.allocate(100 * kLeast, true);  // of pieces of four times the least
  CHECK(arena.counters().live == 0 && arena.counters().reserved == 0 && arena.state(p) == State::Untouched);
  CHECK(arena.is_resident(p) && arena.evict(p) == 0 && arena.fetch(p) == 0);
  static_cast<char*>(p)[50 * kLeast] = 7;  // no operator
  CHECK(arena.counters().live == 4 * kLeast && arena.counters().faults == 0);
  const Operand slice[] = {{p, Access::Write, kMiB, {8 * kLeast, 8 * kLeast + kMiB}}};
  arena.enter("slice", slice, Work::Itself);
  std::memset(piece(p, 8), 3, kMiB);
  arena.exit();
  CHECK(arena.counters().live == 8 * kLeast && static_cast<char*>(p)[50 * kLeast] == 7 && piece(p, 8)[kMiB - 1] == 3);
  CHECK(arena.counters().live_peak == 8 * kLeast && !arena.counters().over_budget && arena.counters().written[4] > 0);
  arena.check_invariants();
  arena.release(p);
  CHECK(arena.counters().live == 0);
  void* q = arena.allocate(2 * kLeast, true);
  arena.release(q);  // never used
  CHECK(arena.counters().live == 0);
}

TEST(an_operator_that_goes_through_its_operands_in_order_works_on_more_than_there_is) {
  Arena& arena = make_arena_in_pieces(4 * kLeast);
  char* a = filled_block(arena, 6 * kLeast, 1);
  const Operand all[] = {{a, Access::Read, 6 * kLeast}};
  arena.enter("copy", all, Work::InOrder);
  void* b = arena.allocate(6 * kLeast);  // its result
  CHECK(arena.state(b) == State::Untouched);
  std::memcpy(b, a, 6 * kLeast);
  arena.exit();
  Counters c = arena.counters();
  CHECK(!c.over_budget && c.reserved_peak <= 4 * kLeast && c.largest_operator_bytes == 4 * kLeast);
  CHECK(filled(a, 6 * kLeast, 1) && filled(b, 6 * kLeast, 1));
}

TEST(an_operator_that_needs_its_operands_at_once_still_does) {
  Arena& arena = make_arena_in_pieces(4 * kLeast);
  char* a = filled_block(arena, 6 * kLeast, 1);
  const Operand all[] = {{a, Access::Read, 6 * kLeast}};
  arena.enter("mm", all, Work::Itself);
  for (std::size_t i = 0; i < 6; ++i) CHECK(arena.state(piece(a, i)) != State::Absent);
  arena.exit();
  CHECK(arena.counters().over_budget && arena.counters().largest_operator_bytes == 6 * kLeast);
}

TEST(an_operand_that_comes_twice_is_pinned_once_by_piece_with_both_accesses) {
  Arena& arena = make_arena_in_pieces(0);
  void* p = arena.allocate(4 * kLeast);
  arena.begin_step(true);
  const Operand slices[] = {
      {p, Access::Read, 8, {0, 8}}, {p, Access::Write, 16, {8, 24}}, {p, Access::Read, 8, {kLeast, kLeast + 8}}};
  arena.enter("twice", slices, Work::Itself);
  arena.exit();
  arena.end_step();
  Recording r = arena.tape().take();
  CHECK(r.storages.size() == 4 && r.storages[0].nbytes == kLeast && r.uses.size() == 2);
  CHECK(r.uses[0].access == Access::ReadWrite && r.uses[0].moved == 24 && r.uses[1].access == Access::Read);
}

TEST(pieces_are_born_one_after_another_on_the_tape_when_they_are_first_used) {
  Arena& arena = make_arena_in_pieces(0);
  arena.begin_step(true);
  void* p = arena.allocate(4 * kLeast, true);
  arena.enter("idle", {}, Work::Itself);
  arena.exit();
  const Operand half[] = {{p, Access::Write, 2 * kLeast, {0, 2 * kLeast}}};
  arena.enter("fill", half, Work::Itself);
  arena.exit();
  arena.enter("result", {}, Work::Itself);
  void* q = arena.allocate(2 * kLeast, true);  // an operator's result is there at once
  CHECK(arena.state(q) == State::Dirty);
  arena.exit();
  arena.release(p);
  arena.end_step();
  Recording r = arena.tape().take();
  CHECK(r.storages.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(r.storages[i].nbytes == kLeast && r.storages[i].birth == (i < 2 ? 2u : 3u));
    CHECK((r.storages[i].death == kNever) == (i >= 2));
    CHECK(r.storages[i].whole == r.storages[i / 2 * 2].whole && r.storages[i].whole != 0);
  }
  CHECK(r.storages[0].whole != r.storages[2].whole);
  arena.begin_step(true);
  arena.end_step();
  CHECK(arena.tape().take().storages[0].whole == r.storages[2].whole);  // found there
}

TEST(a_pin_holds_the_pieces_of_a_range_or_all_of_them) {
  Arena& arena = make_arena_in_pieces(6 * kLeast);
  char* p = filled_block(arena, 4 * kLeast, 1);
  CHECK(arena.evict(p) == 4 * kLeast && !arena.is_resident(p));
  CHECK(arena.pin(piece(p, 1) + 8, kMiB) == 0 && arena.is_pinned_from_outside(p));
  CHECK(arena.state(piece(p, 1)) == State::Dirty && arena.state(p) == State::Absent);
  CHECK(arena.evict(p) == 0);
  arena.unpin(piece(p, 1) + 8, kMiB);
  CHECK(!arena.is_pinned_from_outside(p) && arena.pin(piece(p, 3)) == 0 && arena.is_resident(p));
  CHECK(arena.evict(p) == 0);
  arena.unpin(piece(p, 3));
  CHECK(arena.evict(p) == 4 * kLeast && filled(p, 4 * kLeast, 1));
}

TEST(a_schedule_moves_pieces_as_the_storages_that_they_are) {
  Arena& arena = make_arena_in_pieces(0);
  Schedule s;
  s.n_ticks = 4;
  s.tick_ns = {0, 1, 2, 3, 4};
  s.headroom.assign(4, 0);
  s.storages = {{.nbytes = kLeast, .birth = 1, .uses = {1, 3}}, {.nbytes = kLeast, .birth = 1, .uses = {1, 3}}};
  s.allocations = {0, 1};
  s.commands = {{2, Verb::Evict, 1, kFast, 1, Then::Drop}, {2, Verb::Drop, 1, kFast, 1}};
  std::size_t number = arena.schedules().load(s);
  arena.begin_step();
  arena.enter("birth", {}, Work::Itself);
  char* p = filled_block(arena, 2 * kLeast, 1);
  arena.exit();
  arena.enter("idle", {}, Work::Itself);
  while (arena.state(piece(p, 1)) != State::Absent) std::this_thread::yield();
  CHECK(arena.state(p) == State::Dirty);
  arena.exit();
  arena.enter("use", {}, Work::Itself);
  arena.exit();
  arena.end_step();
  CHECK(arena.schedules().followed() == number && filled(p, 2 * kLeast, 1));
}

TEST(a_forked_child_inherits_each_piece_where_it_is) {
  Arena& arena = make_arena_in_pieces(0);
  void* p = arena.allocate(4 * kLeast, true);
  fill(p, 2 * kLeast, 1);
  const Operand first[] = {{p, Access::Read, 0, {0, 8}}};
  arena.evict(p);
  arena.enter("first", first, Work::Itself);  // one is here, one is away, two are untouched
  arena.exit();
  CHECK(in_child([&] {
    bool same = filled(p, 2 * kLeast, 1);
    std::memset(piece(p, 3), 1, 8);
    return same && piece(p, 2)[0] == 0;
  }));
  CHECK(arena.state(piece(p, 3)) == State::Untouched && filled(p, 2 * kLeast, 1));
}
