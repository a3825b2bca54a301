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

TEST(the_address_space_never_hands_out_a_page_twice_and_merges_what_returns) {
  constexpr std::uint64_t kPages = 500;
  AddressSpace space(kPages);
  std::vector<bool> taken(kPages);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      std::uint64_t pages = 1 + random() % 40;
      std::uint64_t first = space.take(pages);
      if (first == AddressSpace::kNone) continue;
      for (std::uint64_t p = first; p < first + pages; ++p) {
        CHECK(!taken[p]);
        taken[p] = true;
      }
      ranges.emplace_back(first, pages);
    } else if (!ranges.empty()) {
      std::swap(ranges[random() % ranges.size()], ranges.back());
      auto [first, pages] = ranges.back();
      ranges.pop_back();
      std::fill_n(taken.begin() + static_cast<long>(first), pages, false);
      space.give(first, pages);
    }
  }
  for (auto [first, pages] : ranges) space.give(first, pages);
  CHECK(space.take(kPages) == 0);  // one range again
}

TEST(a_shape_covers_its_storage_and_wastes_at_most_a_sixteenth) {
  for (std::size_t n : {1ul, 4096ul, 4097ul, kHugePage - 1, kHugePage, kHugePage + 1, 9ul << 20, (9ul << 20) + 5, 31ul << 20}) {
    Shape shape = shape_of(n);
    CHECK(shape.bytes() >= n && shape.bytes() - n < std::max(kSmallPage, n / 16 + 1) && shape.tail < kHugePage);
  }
  CHECK(shape_of(7 << 20).body == 3 && shape_of(7 << 20).tail == 1 << 20);
}

TEST(pages_move_also_from_a_range_of_several_memory_areas) {
  constexpr std::size_t kBytes = 8 * kSmallPage;
  Reservation from(kBytes, kSmallPage, PROT_READ | PROT_WRITE), to(kBytes, kSmallPage, PROT_NONE);
  for (std::size_t at = 0; at < kBytes; at += kSmallPage) from.begin()[at] = static_cast<char>(at / kSmallPage + 1);
  CHECK(protect(from.begin() + 3 * kSmallPage, kSmallPage, PROT_READ));  // three areas now
  must_move_pages(from.begin(), to.begin(), kBytes);
  for (std::size_t at = 0; at < kBytes; at += kSmallPage) CHECK(to.begin()[at] == static_cast<char>(at / kSmallPage + 1));
}
