// Contents that can be made anew: they leave without a copy, and nobody sees them half made, or made of what has changed.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "maker.hpp"

using namespace ebbtide;

namespace {

constexpr std::size_t kLeast = 4 * kMiB;  // of pieces

Arena& arena_with_maker(std::uint64_t limit, std::size_t least_piece = 0, Options options = {}) {
  options.least_piece = least_piece;
  start_maker(options);
  Arena& arena = make_arena(limit, options);
  maker->arena = &arena;
  return arena;
}

struct Sum {
  std::uint32_t *one, *other, *sum;
  std::size_t n;
};

Sum make_sum(Arena& arena, std::size_t n) {
  Sum made{};
  made.n = n;
  for (std::uint32_t** p : {&made.one, &made.other, &made.sum}) *p = static_cast<std::uint32_t*>(arena.allocate(n));
  fill(made.one, n, 1), fill(made.other, n, 2);
  for (std::size_t i = 0; i < n / 4; ++i) made.sum[i] = made.one[i] + made.other[i];
  maker->learn(made.sum, n, made.one, made.other);
  arena.guard(made.one), arena.guard(made.other);
  CHECK(arena.keep_recipe(made.sum));
  return made;
}

bool is_right(const Sum& s, std::uint32_t more = 0) {
  for (std::size_t i = 0; i < s.n / 4; ++i) {
    if (s.sum[i] != 2 * static_cast<std::uint32_t>(i) * 2654435761u + 3 + more) return false;
  }
  return true;
}

char* piece(const Sum& s, std::size_t number) { return reinterpret_cast<char*>(s.sum) + number * kLeast; }

State state(Arena& arena, const Sum& s, std::size_t number) { return arena.state(piece(s, number)); }

void release(Arena& arena, const Sum& s) {
  maker->free(s.one);
  for (void* p : {s.sum, s.one, s.other}) arena.release(p);
  arena.check_invariants();
  CHECK(arena.counters().live == 0);
}

void dies_unmade(Arena& arena, const Sum& s) {
  arena.release(s.sum);
  CHECK(arena.unmade() == 0);
  arena.unguard(s.one), arena.unguard(s.other);
  s.one[0] = s.other[0] = 1;
  arena.release(s.one), arena.release(s.other);
  arena.check_invariants();
  CHECK(arena.counters().live == 0);
}

}  // namespace

TEST(what_has_a_recipe_leaves_without_a_copy_and_is_made_when_it_is_touched) {
  for (std::size_t n : {std::size_t{4096}, 100 * std::size_t{1024}, 2 * kMiB, 9 * kMiB}) {
    Arena& arena = arena_with_maker(0);
    Sum s = make_sum(arena, n);
    CHECK(arena.state(s.sum) == State::Clean && arena.tiers_with(s.sum) == 0);
    arena.check_invariants();
    CHECK(arena.evict(s.sum) == 0 && arena.state(s.sum) == State::Unmade && arena.unmade() == 1);
    arena.check_invariants();
    CHECK(is_right(s));
    CHECK(arena.state(s.sum) == State::Dirty && arena.unmade() == 0 && maker->handed_over() == 1);
    Counters c = arena.counters();
    CHECK(c.made_anew >= n && c.written[4] == 0);
    release(arena, s);
  }
}

TEST(an_operator_has_what_it_needs_made_on_its_own_thread) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 3 * kMiB);
  maker->keeps = true;
  for (int round = 1; round <= 3; ++round) {
    arena.evict(s.sum);
    CHECK(arena.state(s.sum) == State::Unmade);
    Operand reads[] = {{s.sum, Access::Read}};
    arena.enter("test::read", reads, Work::Itself);
    CHECK(arena.state(s.sum) == State::Clean && maker->handed_over() == round);  // it has its recipe still
    CHECK(is_right(s));
    arena.exit();
    arena.check_invariants();
  }
  CHECK(arena.counters().faults == 0);
  release(arena, s);
}

TEST(a_write_to_what_has_a_recipe_finds_its_contents_also_where_it_leaves_for_want_of_memory_areas) {
  Options options;
  options.most_areas = (memory_areas() + 64) * 4 / 3;  // 64 for the arena, or a quarter of them all
  Arena& arena = arena_with_maker(0, 0, options);
  std::vector<char*> all(options.most_areas);
  for (char*& p : all) p = filled_block(arena, 4096, 3);
  for (std::size_t i : {2, 4, 6}) arena.release(all[i]);
  Sum s = make_sum(arena, 4096);
  CHECK(reinterpret_cast<char*>(s.sum) < all[7]);  // between two that may be written to, so that its leaving makes no area
  for (std::size_t i = 8; i < all.size(); i += 2) CHECK(arena.guard(all[i]));  // an area each
  CHECK(arena.state(s.sum) == State::Clean);
  s.sum[0] += 1;
  CHECK(maker->handed_over() == 1);  // it had left
  s.sum[0] -= 1;
  CHECK(is_right(s));
}

TEST(a_write_to_what_has_a_recipe_takes_the_recipe_away) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  s.sum[7] += 1;
  CHECK(arena.state(s.sum) == State::Dirty);
  CHECK(arena.evict(s.sum) > 0 && arena.state(s.sum) == State::Absent);  // by a copy
  s.sum[7] -= 1;
  CHECK(is_right(s) && maker->handed_over() == 0);
  release(arena, s);
}

TEST(before_somebody_writes_to_what_a_recipe_reads_its_storage_is_made) {
  for (bool leaves : {true, false}) {
    Arena& arena = arena_with_maker(0);
    Sum s = make_sum(arena, 2 * kMiB);
    if (leaves) arena.evict(s.sum);
    std::memset(s.one, 0, s.n);  // nobody was told
    CHECK(arena.state(s.sum) == State::Dirty && is_right(s) && maker->handed_over() == leaves);
    CHECK(s.one[100] == 0);
    arena.check_invariants();
    release(arena, s);
  }
}

TEST(an_address_that_is_asked_for_is_of_made_contents_and_frees_what_a_recipe_reads) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  CHECK(arena.pin(s.other) == 0);
  s.other[0] = 0;
  CHECK(is_right(s));
  CHECK(arena.pin(s.sum) == 0 && !arena.keep_recipe(s.sum));
  arena.unpin(s.other), arena.unpin(s.sum);
  release(arena, s);
}

TEST(what_others_have_the_address_of_is_not_guarded) {
  Arena& arena = arena_with_maker(0);
  auto* mine = static_cast<char*>(arena.allocate(kMiB));
  CHECK(arena.pin(mine) == 0 && !arena.guard(mine));
  int zeros = open("/dev/zero", O_RDONLY);
  CHECK(read(zeros, mine, kMiB) == static_cast<ssize_t>(kMiB));  // the kernel writes to what is writable alone
  close(zeros);
  arena.unpin(mine);
  CHECK(arena.guard(mine));
  arena.unguard(mine);
  mine[0] = 1;
  arena.release(mine);
  arena.check_invariants();
}

TEST(what_a_recipe_reads_may_leave_and_come_back_and_is_read_only_then) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  CHECK(arena.evict(s.one) > 0 && arena.evict(s.other) > 0);
  arena.check_invariants();
  CHECK(arena.fetch(s.one) == 0);
  s.one[3] += 1;  // the sum is made first
  CHECK(is_right(s));
  release(arena, s);
}

TEST(a_result_that_comes_after_another_is_nobodys) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  std::uint64_t number = arena.unmade_by(s.sum);
  CHECK(number != 0 && is_right(s) && arena.unmade_by(s.sum) == 0);
  void* late = arena.allocate(s.n);
  std::memset(late, 1, s.n);
  CHECK(!arena.hand_over(late, s.sum, number, false));
  CHECK(arena.keep_recipe(s.sum));
  arena.evict(s.sum);
  CHECK(!arena.hand_over(late, s.sum, number, false));  // nor of a later recipe
  arena.release(late);
  CHECK(is_right(s));
  release(arena, s);
}

TEST(a_storage_that_dies_unmade_gives_back_all_it_had) {
  Arena& arena = arena_with_maker(0);
  Sum s = make_sum(arena, 2 * kMiB);
  arena.evict(s.sum);
  dies_unmade(arena, s);
}

TEST(threads_that_read_and_write_see_only_whole_and_right_contents) {
  constexpr int kRounds = 200;
  Arena& arena = arena_with_maker(12 * kMiB);
  Sum s = make_sum(arena, 2 * kMiB);
  maker->keeps = true;
  std::atomic<bool> ends = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!ends) CHECK(is_right(s));
    });
  }
  void* other = arena.allocate(8 * kMiB);
  for (int round = 0; round < kRounds; ++round) {
    arena.evict(s.sum);
    if (round % 3 == 0) std::memset(other, round, 8 * kMiB);  // which leaves no room for all
    if (round % 5 == 0) arena.check_invariants();
  }
  ends = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(maker->handed_over() > 0);
  arena.release(other);
  release(arena, s);
}

// Else they would wait until the watchdog comes.
TEST(a_maker_without_room_goes_over_the_budget_where_all_that_could_leave_waits_for_it) {
  for (bool shares_work : {false, true}) {  // the operator's own thread touches it, or one that is in no operator
    Arena& arena = arena_with_maker(10 * kMiB);
    arena.set_watchdog(std::int64_t{1} << 62);
    Sum s = make_sum(arena, 2 * kMiB);
    arena.evict(s.sum);
    void* other = arena.allocate(6 * kMiB);
    Operand held[] = {{other, Access::Write}};
    arena.enter("test::work", held, Work::Itself);
    CHECK(arena.state(s.sum) == State::Unmade);
    if (shares_work) {
      std::thread([&] { CHECK(is_right(s)); }).join();
    } else {
      CHECK(is_right(s));
    }
    arena.exit();
    Counters c = arena.counters();
    CHECK(c.over_budget && c.message.find("more at once") != std::string::npos && maker->handed_over() == 1);
    arena.release(other);
    release(arena, s);
  }
}

TEST(storages_that_push_each_other_out_are_not_made_for_ever) {
  Arena& arena = arena_with_maker(7 * kMiB);
  maker->keeps = true;
  Sum a = make_sum(arena, 2 * kMiB), b = make_sum(arena, 2 * kMiB);
  arena.enter("test::read", {}, Work::Itself);
  for (std::size_t i = 0; i < 100; ++i) CHECK(a.sum[i] == b.sum[i]);
  CHECK(maker->handed_over() < 20);
  arena.exit();
  for (const Sum& s : {a, b}) {
    maker->free(s.one);
    for (void* p : {s.sum, s.one, s.other}) arena.release(p);
  }
  arena.check_invariants();
}

TEST(pieces_leave_one_by_one_and_all_that_are_away_are_made_together) {
  for (std::size_t n : {4 * kLeast, 4 * kLeast + 3 * kMiB + 12}) {  // the last has the rest
    Arena& arena = arena_with_maker(0, kLeast);
    Sum s = make_sum(arena, n);
    for (std::size_t i = 0; i < 4; ++i) CHECK(state(arena, s, i) == State::Clean);
    arena.evict(piece(s, 1), 1, 8), arena.evict(piece(s, 3), 1, 8);
    CHECK(arena.unmade() == 2 && state(arena, s, 0) == State::Clean && state(arena, s, 2) == State::Clean);
    CHECK(arena.unmade_by(s.sum) != 0 && arena.unmade_by(s.sum, kLeast) == 0 && arena.unmade_by(piece(s, 1) - 4, 8) != 0);
    arena.check_invariants();
    CHECK(s.sum[0] == 3 && s.sum[5] == 10 * 2654435761u + 3 && maker->handed_over() == 0);  // what is there is there
    std::uint64_t before = arena.counters().reserved;
    CHECK(is_right(s) && maker->handed_over() == 1 && arena.unmade() == 0);
    Counters c = arena.counters();
    CHECK(c.made_anew >= n - 2 * kLeast && c.made_anew < n - 2 * kLeast + kSmallPage && c.written[4] == 0);
    CHECK(c.reserved - before <= round_up(n, kHugePage));  // the pages of what was there already are free
    for (std::size_t i = 0; i < 4; ++i) CHECK(state(arena, s, i) == State::Dirty);  // no piece has the recipe any more
    arena.check_invariants();
    release(arena, s);
  }
}

TEST(a_write_to_a_piece_takes_the_recipe_from_it_alone) {
  Arena& arena = arena_with_maker(0, kLeast);
  Sum s = make_sum(arena, 4 * kLeast);
  arena.evict(piece(s, 2), 1, 8);
  std::uint32_t& word = s.sum[kLeast / 4 + 7];  // of piece 1
  word += 1;
  CHECK(state(arena, s, 1) == State::Dirty && state(arena, s, 2) == State::Unmade && maker->handed_over() == 0);
  CHECK(arena.evict(s.sum) == kLeast && state(arena, s, 1) == State::Absent);  // the only one that was written
  CHECK(arena.unmade() == 3);
  arena.check_invariants();
  CHECK(arena.forget_recipe(s.sum) == Forgotten::NotYet);
  CHECK(!is_right(s) && maker->handed_over() == 1);
  CHECK(arena.forget_recipe(s.sum) == Forgotten::Part);
  word -= 1;
  CHECK(is_right(s) && arena.unmade() == 0);
  release(arena, s);
}

TEST(pieces_that_were_made_keep_their_recipe_where_the_maker_says_so) {
  Arena& arena = arena_with_maker(8 * kLeast, kLeast);  // of which the operands and what is made take as much
  Sum s = make_sum(arena, 2 * kLeast);
  maker->keeps = true;
  for (int round = 1; round <= 5; ++round) {
    arena.evict(s.sum);
    CHECK(arena.unmade() == 2 && is_right(s));
    arena.check_invariants();
  }
  CHECK(arena.forget_recipe(s.sum) != Forgotten::Part);
  maker->keeps = false;
  CHECK(is_right(s));
  release(arena, s);
}

TEST(before_somebody_writes_to_a_piece_of_what_a_recipe_reads_all_that_is_away_is_made) {
  for (bool leaves : {true, false}) {
    Arena& arena = arena_with_maker(0, kLeast);
    Sum s = make_sum(arena, 3 * kLeast);
    if (leaves) arena.evict(piece(s, 0), 1, 8), arena.evict(piece(s, 2), 1, 8);
    s.one[2 * kLeast / 4] = 0;  // what piece 2 is made of
    CHECK(arena.unmade() == 0 && is_right(s) && maker->handed_over() == leaves);
    CHECK(state(arena, s, 0) == State::Dirty && state(arena, s, 1) == State::Dirty);
    arena.check_invariants();
    release(arena, s);
  }
}

TEST(an_operator_on_a_slice_has_its_pieces_made_and_no_recipe_for_the_rest) {
  Arena& arena = arena_with_maker(0, kLeast);
  Sum s = make_sum(arena, 4 * kLeast);
  arena.evict(piece(s, 3), 1, 8);
  const Operand there[] = {{s.sum, Access::Read, 0, {0, 3 * kLeast}}},
                away[] = {{s.sum, Access::Read, 0, {3 * kLeast, 3 * kLeast + 8}}};
  arena.enter("there", there, Work::Itself);
  CHECK(maker->handed_over() == 0);
  arena.exit();
  arena.enter("away", away, Work::Itself);
  CHECK(maker->handed_over() == 1 && state(arena, s, 3) == State::Dirty);
  arena.exit();
  CHECK(arena.counters().faults == 0 && is_right(s));
  release(arena, s);
}

TEST(an_address_of_a_piece_is_of_made_contents_and_only_that_piece_stays) {
  Arena& arena = arena_with_maker(0, kLeast);
  Sum s = make_sum(arena, 4 * kLeast);
  maker->keeps = true;
  arena.evict(s.sum);
  CHECK(arena.pin(piece(s, 1), 8) == 0 && state(arena, s, 1) == State::Dirty && state(arena, s, 2) == State::Clean);
  CHECK(arena.evict(s.sum) == 0 && state(arena, s, 1) == State::Dirty && arena.unmade() == 3);
  piece(s, 1)[0] += 1;
  arena.unpin(piece(s, 1), 8);
  CHECK(state(arena, s, 2) == State::Unmade);
  piece(s, 1)[0] -= 1;
  maker->keeps = false;
  CHECK(is_right(s));
  arena.check_invariants();
  release(arena, s);
}

TEST(a_storage_that_dies_with_some_pieces_unmade_gives_back_all_it_had) {
  Arena& arena = arena_with_maker(0, kLeast);
  Sum s = make_sum(arena, 3 * kLeast);
  arena.evict(piece(s, 0), 1, kLeast + 8);
  CHECK(arena.unmade() == 2);
  dies_unmade(arena, s);
}

TEST(a_forked_child_sees_the_pieces_that_are_there_and_no_other_until_they_are_made) {
  Arena& arena = arena_with_maker(0, kLeast);
  Sum s = make_sum(arena, 3 * kLeast);
  arena.evict(piece(s, 1), 1, 8);
  for (int made = 0; made <= 1; ++made) {
    CHECK(in_child([&] {
      bool right = s.sum[5] == 10 * 2654435761u + 3;
      bool all = arena.state(piece(s, 1)) != State::Unmade && is_right(s);
      return right && all == (made == 1);
    }));
    CHECK(is_right(s));
  }
  arena.check_invariants();
  release(arena, s);
}

TEST(what_is_not_idle_when_the_recipe_is_kept_has_none) {
  Arena& arena = arena_with_maker(0, kLeast);
  Sum s{};
  s.sum = static_cast<std::uint32_t*>(arena.allocate(3 * kLeast, true));
  fill(piece(s, 0), kLeast, 1), fill(piece(s, 2), kLeast, 1);
  CHECK(arena.pin(s.sum, 8) == 0 && arena.keep_recipe(s.sum));
  CHECK(state(arena, s, 0) == State::Dirty && state(arena, s, 1) == State::Untouched && state(arena, s, 2) == State::Clean);
  CHECK(arena.forget_recipe(s.sum) == Forgotten::Part && state(arena, s, 2) == State::Dirty);
  arena.unpin(s.sum, 8);
  arena.check_invariants();
  arena.release(s.sum);
}

TEST(threads_that_read_pieces_see_only_whole_and_right_contents) {
  constexpr int kRounds = 60;
  Arena& arena = arena_with_maker(8 * kLeast, kLeast);
  Sum s = make_sum(arena, 2 * kLeast);
  maker->keeps = true;
  std::atomic<bool> ends = false;
  std::vector<std::thread> readers;
  for (std::size_t i = 0; i < 3; ++i) {
    readers.emplace_back([&, i] {
      while (!ends) {
        for (std::size_t at = i; at < s.n / 4; at += 1021)
          CHECK(s.sum[at] == 2 * static_cast<std::uint32_t>(at) * 2654435761u + 3);
      }
    });
  }
  void* other = arena.allocate(3 * kLeast);
  for (int round = 0; round < kRounds; ++round) {
    arena.evict(piece(s, round % 2 == 0 ? 0 : 1), 1, round % 3 == 0 ? 2 * kLeast : 8);
    if (round % 3 == 0) std::memset(other, round, 3 * kLeast);  // which leaves no room for all
    if (round % 5 == 0) arena.check_invariants();
  }
  ends = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(maker->handed_over() > 0);
  arena.release(other);
  release(arena, s);
}
