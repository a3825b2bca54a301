// Free runs against a naive count, and the pages of a region against what they held.
#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../core/region.hpp"
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

}  // namespace

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

// The property that page moves rest on: pages that lie side by side as they did at their origin are one memory area to the
// kernel, whatever became of them meanwhile. And every page keeps what it holds, wherever it went.
TEST(pages_of_a_region_keep_their_bytes_and_move_as_one_memory_area) {
  for (std::size_t page : {kSmallPage, kHugePage}) {
    constexpr std::uint32_t kPlaces = 2000, kMostPages = 150;
    Region region(kPlaces * page, page);
    struct Owned {
      Run run;
      bool present;
      std::vector<char> bytes;  // the first of each page
    };
    std::vector<Owned> owned;
    std::uint32_t pages = 0;  // made and not given back
    std::mt19937 random(5);
    auto cached = [&] { return static_cast<std::uint32_t>(region.cached_bytes() / page); };
    auto check = [&](const Owned& o) {
      for (std::uint32_t i = 0; o.present && i < o.run.count; ++i) CHECK(*region.address(o.run.first + i) == o.bytes[i]);
    };
    for (int step = 0; step < 3000; ++step) {
      std::size_t which = owned.empty() ? 0 : random() % owned.size();
      switch (random() % 6) {
        case 0:
        case 1: {  // a birth
          auto count = 1 + static_cast<std::uint32_t>(random() % 20);
          std::uint32_t fresh = count - std::min(count, cached());
          if (pages + fresh > kMostPages || owned.size() > 25) break;
          Owned born{region.allocate_pages(count, random() % 4 == 0), true, {}};
          pages += fresh;
          for (std::uint32_t i = 0; i < count; ++i) {
            born.bytes.push_back(static_cast<char>(random()));
            *region.address(born.run.first + i) = born.bytes.back();
          }
          owned.push_back(born);
          break;
        }
        case 2:  // a death
          if (owned.empty()) break;
          check(owned[which]);
          if (owned[which].present) {
            region.make_writable(owned[which].run);
            region.free_pages(owned[which].run);
          } else {
            region.free_address(owned[which].run);
          }
          std::swap(owned[which], owned.back());
          owned.pop_back();
          break;
        case 3:  // it leaves
          if (owned.empty() || !owned[which].present) break;
          check(owned[which]);
          CHECK(region.make_read_only(owned[which].run));
          for (Run rest = owned[which].run; rest.count > 0;) {  // what is said to move as one is one memory area
            std::uint32_t n = region.together(rest);
            CHECK(memory_areas(region.address(rest.first), n * page) == 1);
            rest = {rest.first + n, rest.count - n};
          }
          region.unmap(owned[which].run);
          owned[which].present = false;
          break;
        case 4: {  // it comes back, or the read fails
          if (owned.empty() || owned[which].present) break;
          Owned& o = owned[which];
          std::uint32_t fresh = o.run.count - std::min(o.run.count, cached());
          if (pages + fresh > kMostPages) break;
          region.begin_fill(o.run);
          pages += fresh;
          for (std::uint32_t i = 0; i < o.run.count;) {
            Run from = region.filling(o.run.first + i, o.run.count - i);
            for (std::uint32_t k = 0; k < from.count; ++k) *region.address(from.first + k) = o.bytes[i + k];
            i += from.count;
          }
          o.present = random() % 4 != 0;
          region.end_fill(o.run, o.present);
          break;
        }
        default:
          if (random() % 20 == 0) pages -= static_cast<std::uint32_t>(region.release_cached(1 + random() % (5 * page), 0) / page);
          if (random() % 40 == 0) {
            std::uint64_t areas = region.areas();
            auto merged = static_cast<std::uint32_t>(region.merge_areas() / page);
            CHECK(merged == 0 ? region.areas() == areas : region.areas() < areas);
            pages -= merged;
          }
          if (random() % 60 == 0 && !owned.empty() && owned[which].present) {
            auto areas = static_cast<int>(region.areas());
            int more = region.areas_more_without(owned[which].run);
            region.decommit(owned[which].run);
            CHECK(static_cast<int>(region.areas()) == areas + more);
            pages -= owned[which].run.count;
            owned[which].present = false;
          }
      }
      std::uint32_t present = 0;
      for (const Owned& o : owned) present += o.present ? o.run.count : 0;
      CHECK(present + cached() == pages);
      if (step % 7 != 0) continue;
      auto areas = memory_areas(region.address(0), kPlaces * page);  // as many as are counted, but what the kernel merged
      CHECK(areas <= region.areas() && region.areas() <= areas + areas / 4 + 8);
    }
    for (const Owned& o : owned) check(o);
  }
}

// [Note: scattered pages]: what leaves and comes back for ever is not cut into single pages.
TEST(small_pages_do_not_scatter_however_long_blocks_come_and_go) {
  if (!can_populate()) return;
  constexpr std::uint32_t kBlocks = 40, kMostPages = 1200;
  Region region(40'000 * kSmallPage, kSmallPage);
  std::vector<std::pair<Run, bool>> blocks;  // and whether it is present
  std::mt19937 random(11);
  std::uint32_t present = 0, moved = 0, areas = 0;
  auto leave = [&](std::pair<Run, bool>& block) {
    for (Run rest = block.first; rest.count > 0; ++areas) {
      std::uint32_t n = region.together(rest);
      rest = {rest.first + n, rest.count - n};
    }
    moved += block.first.count;
    CHECK(region.make_read_only(block.first));
    region.unmap(block.first);
    block.second = false;
    present -= block.first.count;
  };
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    auto count = 17 + static_cast<std::uint32_t>(random() % 120);
    while (present + count > kMostPages) {
      auto& other = blocks[random() % blocks.size()];
      if (other.second) leave(other);
    }
    blocks.emplace_back(region.allocate_pages(count, false), true);
    present += count;
  }
  for (int step = 0; step < 6000; ++step) {
    if (step == 3000) moved = areas = 0;
    auto& block = blocks[random() % kBlocks];
    if (block.second) continue;
    while (present + block.first.count > kMostPages) {
      auto& other = blocks[random() % kBlocks];
      if (other.second) leave(other);
    }
    region.begin_fill(block.first);
    region.end_fill(block.first, true);
    region.make_writable(block.first);
    block.second = true;
    present += block.first.count;
  }
  CHECK(moved > 50'000 && areas < moved / 16);
}

TEST(a_region_reuses_warm_pages_where_they_lie) {
  Region region(200 * kHugePage, kHugePage);
  Run big = region.allocate_pages(30, false);
  *region.address(big.first) = 7;
  region.free_pages(big);
  Run part = region.allocate_pages(10, false);
  CHECK(part.first == big.first && *region.address(part.first) == 7 && region.cached_bytes() == 20 * kHugePage);
  Run more = region.allocate_pages(25, false);  // twenty cached ones and five new
  CHECK(region.cached_bytes() == 0);
  region.free_pages(part);
  region.free_pages(more);
  CHECK(region.cached_bytes() == 35 * kHugePage);
}

TEST(small_pages_are_made_by_windows) {
  Region region(4 * kHugePage, kSmallPage);
  CHECK(region.grow(kHugePage + 1) && region.cached_bytes() == 2 * kHugePage);
  Run run = region.allocate_pages(2 * kHugePage / kSmallPage, false);
  std::vector<unsigned char> present(run.count);
  CHECK(mincore(region.address(run.first), 2 * kHugePage, present.data()) == 0);
  std::ifstream thp("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  std::getline(thp, modes);
  if (modes.find("[never]") == std::string::npos && !modes.empty()) {
    CHECK(std::ranges::count_if(present, [](unsigned char p) { return (p & 1) != 0; }) == run.count);
  }
  region.free_pages(run);
  CHECK(region.release_cached(2 * kHugePage, 0) == 2 * kHugePage && region.cached_bytes() == 0);
  CHECK(!region.grow(64 * kHugePage));
}
