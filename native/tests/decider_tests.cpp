// The parts that need no arena: the decider, and the simulator's order.
#include <algorithm>
#include <random>
#include <sys/stat.h>

#include "../core/decider.hpp"
#include "../core/system.hpp"
#include "../simulate/order.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {
Candidate candidate(BlockId id, std::uint64_t age, bool clean = false, Shield shield = Shield::None) {
  return {id, shield, clean, 100, age};
}
}  // namespace

TEST(the_decider_takes_the_longest_unused_first_and_no_more_than_needed) {
  Candidate all[] = {candidate(0, 10), candidate(1, 30), candidate(2, 20)};
  CHECK(choose_victims(all, 150, kDemand) == 2);
  CHECK(all[0].id == 1 && all[1].id == 2);
}

TEST(the_decider_prefers_clean_among_equally_old) {
  Candidate all[] = {candidate(0, 10), candidate(1, 10, true)};
  CHECK(choose_victims(all, 1, kDemand) == 1);
  CHECK(all[0].id == 1);
}

TEST(only_a_policy_that_weighs_cost_looks_at_what_is_clean) {
  const Policy& lru = *find_policy("lru");
  Candidate all[] = {candidate(0, 11), candidate(1, 10, true)};
  CHECK(choose_victims(all, 1, lru) == 1 && all[0].id == 0);
  CHECK(choose_victims(all, 1, kDemand) == 1 && all[0].id == 1);
}

TEST(visitors_leave_first_where_what_found_room_stays) {
  Candidate all[] = {candidate(0, 30), candidate(1, 10)};
  all[1].transient = true;
  CHECK(choose_victims(all, 1, *find_policy("first-touch")) == 1 && all[0].id == 1);
  CHECK(choose_victims(all, 1, *find_policy("lru")) == 1 && all[0].id == 0);
}

TEST(policies_say_what_is_evicted_after_use_and_how_much_is_kept_free) {
  CHECK(find_policy("mru") == nullptr);
  for (bool transient : {false, true}) {
    CHECK(evicts_after_use(*find_policy("evict-all"), transient) && !evicts_after_use(*find_policy("lru"), transient));
    CHECK(evicts_after_use(*find_policy("first-touch"), transient) == transient);
  }
  CHECK(ahead_bytes(*find_policy("lru"), 1000, 0) == 0 && batch_bytes(*find_policy("lru"), 1000) == 0);
  CHECK(ahead_bytes(*find_policy("reactive"), 1000, 20) == 0 && ahead_bytes(*find_policy("reactive"), 1000, 19) == 31);
  CHECK(ahead_bytes(kDemand, 1600, 99) == 1 && ahead_bytes(kDemand, 1600, 100) == 0 && batch_bytes(kDemand, 640) == 10);
  CHECK(ahead_bytes(kDemand, std::uint64_t{1} << 40, 1) == (std::uint64_t{256} << 20) - 1);
}

TEST(the_decider_spares_what_is_shielded) {
  Candidate all[] = {candidate(0, 39, false, Shield::Outer), candidate(1, 1), candidate(2, 38, false, Shield::ThisTick)};
  CHECK(choose_victims(all, 250, kDemand) == 3);
  CHECK(all[0].id == 1 && all[1].id == 2 && all[2].id == 0);
}

TEST(the_decider_agrees_with_a_sort_and_is_a_function_of_its_input) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const Policy& policy = kPolicies[static_cast<std::size_t>(round) % std::size(kPolicies)];
    std::vector<Candidate> a;
    for (BlockId id = 0; id < random() % 40; ++id) {
      a.push_back(
          {id, static_cast<Shield>(random() % 3), random() % 2 == 0, 1 + random() % 50, random() % 20, random() % 2 == 0});
    }
    std::vector<Candidate> sorted = a, shuffled = a;
    std::ranges::shuffle(shuffled, random);
    auto key = [&](const Candidate& c) {
      double age = (static_cast<double>(c.age) + 1.0) / (policy.weighs_cost && !c.clean ? 2.0 : 1.0);
      bool stays = policy.name == "first-touch" && !c.transient;
      return std::tuple(c.shield, stays, -age, c.id);
    };
    std::ranges::sort(sorted, {}, key);
    std::uint64_t needed = random() % 600, covered = 0;
    std::size_t expected = 0;
    while (expected < sorted.size() && covered < needed) covered += sorted[expected++].bytes;
    std::size_t spare = round % 2 == 0 ? 0 : random() % 10;
    CHECK(choose_victims(shuffled, needed, policy, {}, spare) == expected);
    for (std::size_t i = 0; i < std::min(expected + spare, a.size()); ++i) CHECK(shuffled[i].id == sorted[i].id);
  }
}

TEST(those_who_wait_in_line_leave_as_if_the_decider_looked_at_all_of_them) {
  constexpr BlockId kPieces = 40;
  std::mt19937 random(11);
  for (const Policy& policy : kPolicies) {
    std::vector<std::uint64_t> valid(kPieces), evicting(kPieces), nbytes(kPieces);
    std::vector<std::int64_t> last_use(kPieces, -1), next_use(kPieces, 5);
    std::vector<std::uint8_t> moves(kPieces), transient(kPieces);
    for (BlockId i = 0; i < kPieces; ++i) nbytes[i] = 1 + random() % 9, moves[i] = i % 8 != 0, valid[i] = random() % 4;
    Order order(policy, {valid, evicting, nbytes, last_use, next_use, moves, transient}, 2);
    for (std::int64_t now = 0; now < 2000; ++now) {
      BlockId piece = random() % kPieces;
      switch (random() % 4) {
        case 0:
          valid[piece] = random() % 4;
          break;
        case 1:
          evicting[piece] = random() % 4;
          break;
        case 2:
          last_use[piece] = now;
          next_use[piece] = now + 1 + random() % 50;
          break;
        case 3:
          transient[piece] ^= 1;
      }
      order.changed(piece);
      for (BlockId i = 0; i < kPieces; ++i) next_use[i] = std::max(next_use[i], now + 1), order.changed(i);
      if (random() % 3 != 0) continue;
      unsigned tier = random() % 2;
      BlockId spared = random() % kPieces;
      std::vector<Candidate> all;
      for (BlockId i = 0; i < kPieces; ++i) {
        if (i == spared || moves[i] == 0 || ((valid[i] & ~evicting[i]) >> tier & 1) == 0) continue;
        std::int64_t age = policy.age == Age::UntilUse ? next_use[i] - now : now - last_use[i];
        bool clean = (valid[i] & ~(std::uint64_t{1} << tier)) != 0;
        all.push_back({i, Shield::None, clean, nbytes[i], static_cast<std::uint64_t>(age), transient[i] != 0});
      }
      std::uint64_t needed = random() % 120;
      std::size_t count = choose_victims(all, needed, policy);
      auto chosen = order.victims(tier, needed, now, [&](BlockId i) { return i != spared; });
      CHECK(chosen.size() == count);
      for (std::size_t i = 0; i < count; ++i) CHECK(chosen[i] == all[i].id);
    }
  }
}

TEST(a_shape_covers_its_storage_and_huge_pages_waste_little) {
  for (std::size_t n : {1ul, 4096ul, 4097ul, kHugePage - 1, kHugePage, kHugePage + 1, 9ul << 20, (9ul << 20) + 5, 31ul << 20}) {
    Shape shape = shape_of(n);
    CHECK(shape.bytes() >= n && shape.bytes() - n < std::max(kSmallPage, n / (n < 2 * kHugePage ? 8 : 3) + 1));
  }
  CHECK(shape_of(8 << 20).page == kHugePage && shape_of(5 << 19).page == kSmallPage && shape_of(31 << 20).pages == 16);
}
