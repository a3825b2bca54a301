// Online policies in the arena: what is evicted as they say, and comes back whole. The decider alone is in decider_tests.cpp.
#include <thread>
#include <vector>

#include "check.hpp"

using namespace ebbtide;

TEST(under_evict_all_an_operand_leaves_when_its_outermost_operator_has_ended) {
  Arena& arena = make_arena(64 * kMiB);
  arena.set_policy(*find_policy("evict-all"));
  char* p = filled_block(arena, 4 * kMiB, 1);
  const Operand operands[] = {{p, Access::Read}};
  arena.enter("outer", operands, Work::Itself);
  arena.enter("inner", operands, Work::Itself);
  arena.exit();
  CHECK(arena.state(p) == State::Dirty);
  arena.exit();
  CHECK(arena.state(p) == State::Writing || arena.state(p) == State::Absent);
  CHECK(filled(p, 4 * kMiB, 1));
  while (arena.state(p) == State::Writing) std::this_thread::yield();
  arena.enter("again", operands, Work::Itself);
  arena.exit();  // clean: gone at once
  CHECK(arena.state(p) == State::Absent && arena.counters().written[4] == 4 * kMiB);
  arena.check_invariants();
  arena.set_limits(0, 0);  // without a bound nothing has to be evicted
  arena.enter("unbounded", operands, Work::Itself);
  arena.exit();
  CHECK(arena.state(p) == State::Clean && filled(p, 4 * kMiB, 1));
}

TEST(under_evict_all_what_makes_anew_leaves_its_operands_there) {
  Arena& arena = make_arena(64 * kMiB);
  arena.set_policy(*find_policy("evict-all"));
  char* p = filled_block(arena, 4 * kMiB, 1);
  const Operand operands[] = {{p, Access::Read}};
  off_the_record = true;
  arena.enter("made", operands, Work::Itself);
  arena.exit();
  off_the_record = false;
  CHECK(arena.state(p) == State::Dirty);  // else whoever reads it next makes it anew again, and what that reads, and so on
}

TEST(under_first_touch_what_found_room_stays_and_visitors_go) {
  Arena& arena = make_arena(16 * kMiB);
  arena.set_policy(*find_policy("first-touch"));
  std::vector<void*> blocks;
  for (unsigned i = 0; i < 4; ++i) {  // the first to come is forced out by the third, which is transient from birth
    blocks.push_back(filled_block(arena, 6 * kMiB, i));
  }
  auto use = [&](unsigned i) {
    const Operand operands[] = {{blocks[i], Access::Read}};
    arena.enter("op", operands, Work::Itself);
    arena.exit();
  };
  for (int round = 0; round < 3; ++round) {
    for (unsigned i : {1, 0, 2, 3}) use(i);
  }
  CHECK(arena.state(blocks[1]) == State::Dirty);  // older than all others, and never evicted
  for (unsigned i = 0; i < 4; ++i) CHECK(filled(blocks[i], 6 * kMiB, i));
  CHECK(!arena.counters().over_budget);
}

TEST(under_reactive_three_of_four_accesses_do_not_count) {
  Arena& arena = make_arena(16 * kMiB);
  arena.set_policy(*find_policy("reactive"));
  void* blocks[3];
  for (void*& p : blocks) p = arena.allocate(4 * kMiB);
  auto use = [&](void* p) {
    const Operand operands[] = {{p, Access::Read}};
    arena.enter("op", operands, Work::Itself);
    arena.exit();
  };
  for (void* p : {blocks[0], blocks[0], blocks[0], blocks[1]}) use(p);  // the fourth is seen
  void* last = arena.allocate(8 * kMiB);
  CHECK(arena.state(blocks[0]) == State::Absent && arena.state(blocks[1]) == State::Dirty);
  CHECK(last != nullptr);
}
