// Free runs against a naive count, and pages that go out and come home.
#include <algorithm>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "../core/page_pool.hpp"
#include "../core/types.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {

// Lengths of the runs in a row of flags.
std::vector<std::uint32_t> runs_of(const std::vector<bool>& free) {
  std::vector<std::uint32_t> lengths;
  std::uint32_t length = 0;
  for (bool is_free : free) {
    if (is_free) ++length;
    if (!is_free && length > 0) lengths.push_back(std::exchange(length, 0));
  }
  if (length > 0) lengths.push_back(length);
  return lengths;
}

std::size_t memory_areas(const char* begin, std::size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    std::size_t dash = line.find('-');
    auto from = std::stoull(line.substr(0, dash), nullptr, 16);
    auto to = std::stoull(line.substr(dash + 1, line.find(' ') - dash), nullptr, 16);
    auto first = reinterpret_cast<std::uintptr_t>(begin);
    if (from < first + bytes && first < to) ++count;
  }
  return count;
}

}  // namespace

TEST(free_runs_agree_with_a_naive_count_and_give_the_best_fit) {
  constexpr std::uint32_t kSlots = 3000;
  FreeRuns runs(kSlots);
  std::vector<bool> free(kSlots, false);
  std::vector<Run> taken{{0, kSlots}};
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      Run back = taken.back();
      taken.pop_back();
      if (back.count > 1 && random() % 2 == 0) {  // in two parts
        std::uint32_t part = 1 + static_cast<std::uint32_t>(random() % (back.count - 1));
        taken.push_back({back.first + part, back.count - part});
        back.count = part;
      }
      std::fill_n(free.begin() + back.first, back.count, true);
      runs.give(back);
    } else {
      auto wanted = 1 + static_cast<std::uint32_t>(random() % (random() % 8 == 0 ? 900 : 40));
      auto lengths = runs_of(free);
      std::ranges::sort(lengths);
      auto fit = std::ranges::lower_bound(lengths, wanted);
      CHECK(runs.fits(wanted) == (fit != lengths.end()));
      bool shortest = random() % 4 == 0;
      Run run = shortest ? runs.take_shortest(wanted) : runs.take(wanted);
      std::uint32_t expected = lengths.empty() ? 0
                               : shortest      ? std::min(wanted, lengths.front())
                                               : std::min(wanted, lengths.back());
      CHECK(run.count == expected);
      if (run.count == 0) continue;
      for (std::uint32_t s = run.first; s < run.first + run.count; ++s) CHECK(free[s]);
      std::fill_n(free.begin() + run.first, run.count, false);
      auto left = runs_of(free);  // of the shortest that fits, so as few long ones as can be are broken
      std::ranges::sort(left);
      if (!shortest && fit != lengths.end()) {
        std::uint32_t rest = *fit - wanted;
        lengths.erase(fit);
        if (rest > 0) lengths.push_back(rest);
        std::ranges::sort(lengths);
        CHECK(left == lengths);
      }
      taken.push_back(run);
    }
    CHECK(runs.count() == static_cast<std::uint32_t>(std::ranges::count(free, true)));
  }
}

// The property that page moves rest on: neighbours that are at home are one memory area to the kernel, whatever became
// of them meanwhile.
TEST(pages_come_home_as_one_memory_area_with_what_they_hold) {
  for (std::size_t page : {kSmallPage, kHugePage}) {
    constexpr std::uint32_t kPages = 60;
    PagePool pool(page, kPages, 0);
    Reservation blocks(4 * kPages * page, kHugePage, PROT_NONE);
    Run all = pool.take(kPages);
    CHECK(all.first == 0 && all.count == kPages);
    for (std::uint32_t i = 0; i < kPages; ++i) *pool.address(i) = static_cast<char>(i + 1);
    pool.give(all);
    struct Shown {
      Run run;
      char* at;
    };
    std::vector<Shown> shown;
    std::vector<bool> used(4 * kPages, false);
    std::mt19937 random(5);
    auto home = [&](std::size_t which) {
      Shown back = shown[which];
      shown.erase(shown.begin() + static_cast<std::ptrdiff_t>(which));
      std::size_t bytes = back.run.count * page;
      if (random() % 2 == 0) must_protect(back.at, bytes, random() % 2 == 0 ? PROT_NONE : PROT_READ);
      pool.bring_home(back.at, back.run);
      if (random() % 2 == 0) must_reserve(back.at, bytes);
      std::fill_n(used.begin() + (back.at - blocks.begin()) / static_cast<std::ptrdiff_t>(page), back.run.count, false);
      CHECK(memory_areas(pool.address(back.run.first), bytes) == 1);
    };
    for (int i = 0; i < 1500; ++i) {
      if (shown.empty() || (random() % 2 == 0 && pool.warm_bytes() > 0)) {
        Run run = pool.take(1 + static_cast<std::uint32_t>(random() % 9));
        std::size_t at = random() % (used.size() - run.count);
        if (std::any_of(used.begin() + at, used.begin() + at + run.count, [](bool u) { return u; })) {
          pool.give(run);
          continue;
        }
        std::fill_n(used.begin() + at, run.count, true);
        char* to = blocks.begin() + at * page;
        CHECK(memory_areas(pool.address(run.first), run.count * page) == 1);
        pool.show(run, to, random() % 2 == 0 ? PROT_READ : PROT_READ | PROT_WRITE);
        CHECK(memory_areas(to, run.count * page) == 1);
        for (std::uint32_t s = 0; s < run.count; ++s) CHECK(to[s * page] == static_cast<char>(run.first + s + 1));
        shown.push_back({run, to});
      } else {
        home(random() % shown.size());
      }
    }
    while (!shown.empty()) home(0);
    CHECK(memory_areas(pool.address(0), kPages * page) == 1);
    for (std::uint32_t i = 0; i < kPages; ++i) CHECK(*pool.address(i) == static_cast<char>(i + 1));
    CHECK(pool.release(page + 1) == 2 * page && pool.warm_bytes() == (kPages - 2) * page);
  }
}

TEST(pages_that_a_child_may_share_come_home_empty) {
  PagePool pool(kSmallPage, 16, 0);
  Reservation block(4 * kSmallPage, kHugePage, PROT_NONE);
  Run run = pool.take_whole(4);
  pool.show(run, block.begin(), PROT_READ | PROT_WRITE);
  block.begin()[0] = 1;
  pool.bring_home_empty(block.begin(), run);
  CHECK(pool.warm_bytes() == 0 && *pool.address(run.first) == 0);
  CHECK(pool.take_whole(16).count == 16);
}

TEST(a_window_of_small_pages_is_made_at_once_and_given_back_whole) {
  constexpr std::uint32_t kWindow = kHugePage / kSmallPage;
  PagePool pool(kSmallPage, 16, 2);
  CHECK(pool.grow() && pool.grow() && !pool.grow());
  CHECK(pool.warm_bytes() == 2 * kHugePage && pool.fits(kWindow) && !pool.fits(kWindow + 1));
  Run part = pool.take_whole(3);
  CHECK(pool.release_windows(1) == kHugePage);      // the other one
  CHECK(pool.release_windows(kHugePage) == 0);      // this one is in use
  CHECK(pool.warm_bytes() == (kWindow - 3) * kSmallPage);
  pool.give(part);
  CHECK(pool.release(kSmallPage) == kSmallPage);    // torn: what is left is given back page by page
  CHECK(pool.release_windows(kHugePage) == 0 && pool.release(kHugePage) == kHugePage - kSmallPage);
  CHECK(pool.warm_bytes() == 0 && pool.grow());
}
