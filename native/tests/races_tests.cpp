// Faults of other threads against moves of the pages beside them and under them, and a kernel that unmaps what it then
// does not replace.
//
// A page that is lost reads as zeros, a stale one as what was there before, another's as something else. So each word holds
// whose it is and how often it was written. EBBTIDE_RACE_SECONDS makes the race longer: `make race RACE_MINUTES=60`.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "mock_tier.hpp"

using namespace ebbtide;

namespace {

using Time = std::chrono::steady_clock;
using Word = std::uint64_t;

constexpr unsigned kWriters = 3;
constexpr std::array<std::size_t, 8> kSizes{4096, 12 << 10, 40 << 10, 100 << 10, 200 << 10, 600 << 10, 2 << 20, 4 << 20};

struct Shared {
  Word* words;
  std::size_t count;
};

// Of which storage and place it is, never 0; the rest counts writes.
Word tag(std::size_t storage, std::size_t word) { return (storage * 7919 + word) % 65521 + 1; }
constexpr Word kWrite = 65536;

struct Race {
  Arena& arena;
  std::vector<Shared> shared;
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> accesses{0}, moves{0}, births{0}, collapsed{0};

  // Each word has one thread that writes it, and so knows what it holds; the others know what they saw last.
  void write_and_read(unsigned self) {
    std::mt19937 random(self);
    std::vector<std::vector<Word>> seen;
    for (std::size_t s = 0; s < shared.size(); ++s) {
      seen.emplace_back(shared[s].count);
      for (std::size_t i = 0; i < shared[s].count; ++i) seen[s][i] = tag(s, i);
    }
    for (std::uint64_t n = 0; !over; ++n) {
      std::size_t s = random() % shared.size(), i = random() % shared[s].count;
      std::atomic_ref<Word> word(shared[s].words[i]);
      Word found = word.load(std::memory_order_relaxed), &last = seen[s][i];
      bool own = i % kWriters == self;
      if (found % kWrite != tag(s, i) || found < last || (own && found != last)) differs(s, i, found, last);
      last = found;
      if (own && n % 2 == 0) word.store(last += kWrite, std::memory_order_relaxed);
      if (n % 1024 == 0) accesses += 1024;
    }
  }

  [[noreturn]] void differs(std::size_t s, std::size_t i, Word found, Word expected) {
    Word again = std::atomic_ref<Word>(shared[s].words[i]).load();
    std::fprintf(stderr, "storage %zu of %zu bytes, word %zu (page %zu): %#lx, not %#lx; then %#lx\n", s, kSizes[s], i,
                 i * sizeof(Word) / kSmallPage, found, expected, again);
    CHECK(!"a word is what was written there");
    std::abort();
  }

  void move(unsigned seed) {
    std::mt19937 random(seed);
    while (!over) {
      char* p = reinterpret_cast<char*>(shared[random() % shared.size()].words);
      if (random() % 2 == 0) {
        moves += arena.evict(p) > 0 ? 1 : 0;
      } else {
        CHECK(arena.fetch(p) == 0);
      }
    }
  }

  // Storages beside them come and go, so that cached pages lie scattered, move, are made and given back.
  void bear(unsigned seed) {
    std::mt19937 random(seed);
    struct Mine {
      char* p;
      std::size_t bytes;
      unsigned seed;
    };
    std::vector<Mine> mine;
    while (!over || !mine.empty()) {
      if (!over && mine.size() < 6) {
        std::size_t bytes = 4096 + random() % (300 << 10);
        auto* p = static_cast<char*>(arena.allocate(bytes));
        mine.push_back({p, bytes, static_cast<unsigned>(random())});
        fill(p, bytes, mine.back().seed);
        ++births;
      } else {
        std::swap(mine[random() % mine.size()], mine.back());
        CHECK(filled(mine.back().p, mine.back().bytes, mine.back().seed));
        arena.release(mine.back().p);
        mine.pop_back();
      }
    }
  }

  // As khugepaged does.
  void collapse() {
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1
    std::mt19937 random(5);
    while (!over) {
      auto at = reinterpret_cast<std::uintptr_t>(shared[random() % shared.size()].words) / kHugePage * kHugePage;
      if (madvise(reinterpret_cast<void*>(at), kHugePage, kCollapse) == 0) ++collapsed;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
};

}  // namespace

TEST(faults_race_moves_of_the_pages_under_them_and_beside_them) {
  const char* asked = std::getenv("EBBTIDE_RACE_SECONDS");
  const auto seconds = std::chrono::seconds(asked != nullptr ? std::atoi(asked) : 3);
  Tiers::List tiers;
  tiers.push_back(std::make_unique<MockTier>(Behaviour{}));
  Race race{make_arena(7 * kMiB, {}, std::move(tiers)), {}};
  for (std::size_t s = 0; s < kSizes.size(); ++s) {
    Shared shared{static_cast<Word*>(race.arena.allocate(kSizes[s])), kSizes[s] / sizeof(Word)};
    for (std::size_t i = 0; i < shared.count; ++i) shared.words[i] = tag(s, i);
    race.shared.push_back(shared);
  }
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kWriters; ++t) threads.emplace_back([&, t] { race.write_and_read(t); });
  for (unsigned t = 0; t < 2; ++t) threads.emplace_back([&, t] { race.move(100 + t); });
  threads.emplace_back([&] { race.bear(200); });
  threads.emplace_back([&] { race.collapse(); });
  for (auto until = Time::now() + seconds; Time::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    race.arena.check_invariants();
  }
  race.over = true;
  for (std::thread& thread : threads) thread.join();
  Counters c = race.arena.counters();
  std::printf("  %llu accesses, %llu faults, %llu evictions asked for, %.1f GB out, %.1f GB in, %llu births, %llu collapsed\n",
              static_cast<unsigned long long>(race.accesses), static_cast<unsigned long long>(c.faults),
              static_cast<unsigned long long>(race.moves), static_cast<double>(c.evicted[4]) * 1e-9,
              static_cast<double>(c.fetched[4]) * 1e-9, static_cast<unsigned long long>(race.births),
              static_cast<unsigned long long>(race.collapsed));
  CHECK(race.accesses > 0 && race.moves > 0 && race.births > 0 && c.faults > 0 && c.fetched[4] > 0);
}

// --- a range of several memory areas

namespace {

constexpr std::size_t kBytes = 8 * kSmallPage;

// What Linux does before 6.17: it unmaps the target, then sees several areas.
void* unmaps_first(void* from, void* to, std::size_t bytes) {
  if (bytes > 2 * kSmallPage) {
    CHECK(munmap(to, bytes) == 0);
    errno = EFAULT;
    return nullptr;
  }
  void* moved = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
  return moved != MAP_FAILED ? moved : nullptr;
}

// Another thread maps memory right then, and the kernel gives it that place.
void* is_overtaken(void* from, void* to, std::size_t bytes) {
  void* moved = unmaps_first(from, to, bytes);
  if (moved == nullptr) mmap(to, kSmallPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  return moved;
}

struct Ranges {
  Reservation from{kBytes, kSmallPage, PROT_READ | PROT_WRITE}, to{kBytes, kSmallPage, PROT_NONE};
  Ranges() {
    for (std::size_t at = 0; at < kBytes; at += kSmallPage) from.begin()[at] = static_cast<char>(at / kSmallPage + 1);
    CHECK(protect(from.begin() + 3 * kSmallPage, kSmallPage, PROT_READ));  // three areas now
  }
  void move() { must_move_pages(from.begin(), to.begin(), kBytes); }
  void check() const {
    for (std::size_t at = 0; at < kBytes; at += kSmallPage) CHECK(to.begin()[at] == static_cast<char>(at / kSmallPage + 1));
  }
};

}  // namespace

TEST(pages_move_also_from_a_range_of_several_memory_areas) {
  Ranges ranges;
  ranges.move();
  ranges.check();
}

TEST(pages_move_also_where_the_kernel_unmaps_their_place_before_it_refuses) {
  Ranges ranges;
  move_call = unmaps_first;
  ranges.move();
  ranges.check();
}

TEST(memory_that_another_thread_mapped_meanwhile_is_not_replaced) {
  CHECK(!in_child([] {  // a sanitizer may stand in for the signal that ends it
    Ranges ranges;
    move_call = is_overtaken;
    ranges.move();
    return true;  // over what is another's
  }));
}
