// The parts that need no arena: the decider and the address space.
#include <algorithm>
#include <cstring>
#include <random>
#include <sys/stat.h>

#include "../core/decider.hpp"
#include "../core/system.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {
Candidate candidate(BlockId id, std::uint64_t age, bool clean = false, Shield shield = Shield::None) {
  return {id, shield, clean, 100, age};
}
}  // namespace

TEST(the_decider_takes_the_longest_unused_first_and_no_more_than_needed) {
  Candidate all[] = {candidate(0, 10), candidate(1, 30), candidate(2, 20)};
  CHECK(choose_victims(all, 150, {}) == 2);
  CHECK(all[0].id == 1 && all[1].id == 2);
}

TEST(the_decider_prefers_clean_among_equally_old) {
  Candidate all[] = {candidate(0, 10), candidate(1, 10, true)};
  CHECK(choose_victims(all, 1, {}) == 1);
  CHECK(all[0].id == 1);
}

TEST(the_decider_spares_what_is_shielded) {
  Candidate all[] = {candidate(0, 39, false, Shield::Outer), candidate(1, 1), candidate(2, 38, false, Shield::ThisTick)};
  CHECK(choose_victims(all, 250, {}) == 3);
  CHECK(all[0].id == 1 && all[1].id == 2 && all[2].id == 0);
}

TEST(the_decider_agrees_with_a_sort_and_is_a_function_of_its_input) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Candidate> a;
    for (BlockId id = 0; id < random() % 40; ++id) {
      a.push_back({id, static_cast<Shield>(random() % 3), random() % 2 == 0, 1 + random() % 50, random() % 20});
    }
    std::vector<Candidate> sorted = a, shuffled = a;
    std::ranges::shuffle(shuffled, random);
    auto key = [](const Candidate& c) {
      double age = (static_cast<double>(c.age) + 1.0) / (c.clean ? 1.0 : 2.0);
      return std::tuple(c.shield, -age, c.id);
    };
    std::ranges::sort(sorted, {}, key);
    std::uint64_t needed = random() % 600, covered = 0;
    std::size_t expected = 0;
    while (expected < sorted.size() && covered < needed) covered += sorted[expected++].bytes;
    CHECK(choose_victims(shuffled, needed, {}) == expected);
    for (std::size_t i = 0; i < expected; ++i) CHECK(shuffled[i].id == sorted[i].id);
  }
}

TEST(a_shape_covers_its_storage_and_huge_pages_waste_at_most_an_eighth) {
  for (std::size_t n : {1ul, 4096ul, 4097ul, kHugePage - 1, kHugePage, kHugePage + 1, 9ul << 20, (9ul << 20) + 5, 31ul << 20}) {
    Shape shape = shape_of(n);
    CHECK(shape.bytes() >= n && shape.bytes() - n < std::max(kSmallPage, n / 8 + 1));
  }
  CHECK(shape_of(8 << 20).page == kHugePage && shape_of(5 << 20).page == kSmallPage && shape_of(31 << 20).pages == 16);
}

TEST(pages_move_also_from_a_range_of_several_memory_areas) {
  constexpr std::size_t kBytes = 8 * kSmallPage;
  Reservation from(kBytes, kSmallPage, PROT_READ | PROT_WRITE), to(kBytes, kSmallPage, PROT_NONE);
  for (std::size_t at = 0; at < kBytes; at += kSmallPage) from.begin()[at] = static_cast<char>(at / kSmallPage + 1);
  CHECK(protect(from.begin() + 3 * kSmallPage, kSmallPage, PROT_READ));  // three areas now
  must_move_pages(from.begin(), to.begin(), kBytes);
  for (std::size_t at = 0; at < kBytes; at += kSmallPage) CHECK(to.begin()[at] == static_cast<char>(at / kSmallPage + 1));
}
