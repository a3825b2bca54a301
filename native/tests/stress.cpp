// 100,000 random operations (a quarter of them where storages are in pieces) from several threads against plain twins, under
// a budget far below what is live, with chaos, over two, three and four tiers, also compressed ones: every storage must hold
// what its twin holds, and the invariants must hold throughout.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "../core/compressed_tier.hpp"
#include "../core/file_tier.hpp"
#include "check.hpp"
#include "maker.hpp"
#include "mock_tier.hpp"
#include "numa_ground.hpp"

using namespace ebbtide;

namespace {

constexpr int kThreads = 3;
constexpr std::size_t kLimit = std::size_t{12} << 20;  // one operator of each thread must fit
constexpr std::size_t kMostOfASum = std::size_t{256} << 10;

struct Twin {
  char* p;
  std::vector<char> copy;
};

std::size_t random_size(std::mt19937& random) {
  switch (random() % 16) {
    case 0:
      return (std::size_t{2} << 20) * (1 + random() % 2) - random() % 4096;  // huge pages
    case 1:
      return (std::size_t{2} << 20) + (std::size_t{512} << 10);  // a huge one and a tail
    case 2:
    case 3:
    case 4:
    case 5:
      return 4096 + random() % (200 << 10);
    default:
      return 4096 + random() % 8192;
  }
}

class Worker {
 public:
  Worker(Arena& arena, unsigned seed, Rank slowest, bool in_pieces, bool makes)
      : arena_(arena), random_(seed), slowest_(slowest), in_pieces_(in_pieces), makes_(makes) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) step();
    for (Twin& twin : twins_) check_all(twin), release(twin);
  }

 private:
  void step() {
    switch (random_() % 16) {
      case 0:
      case 1:
        if (twins_.size() < 30) return makes_ && random_() % 4 != 0 ? birth_of_a_sum() : birth();
        [[fallthrough]];
      case 2:
        return death();
      case 3:
        return with_twin([&](Twin& t) { move_away(t); });
      case 4:
        return with_twin([&](Twin& t) { CHECK(arena_.fetch(t.p) == 0); });
      case 5:
      case 6:
        return in_operator();
      case 7:
      case 8:
      case 9:
      case 10:
        return with_twin([&](Twin& t) {
          if (makes_ && random_() % 4 != 0) return check_some(t);  // a write takes recipes away
          write(t);
        });
      default:
        return with_twin([&](Twin& t) { check_some(t); });
    }
  }

  Rank any_tier() { return static_cast<Rank>(1 + random_() % slowest_); }

  void move_away(Twin& t) {
    arena_.evict(t.p, any_tier());
    if (slowest_ > 1 && random_() % 2 == 0)
      arena_.copy(t.p, any_tier(), any_tier(), random_() % 2 == 0 ? Then::Keep : Then::Drop);
  }

  template <typename F>
  void with_twin(F f) {
    if (!twins_.empty()) f(twins_[random_() % twins_.size()]);
  }

  void birth() {
    bool large = in_pieces_ && random_() % 16 == 0;
    std::size_t n = large ? 4 * kMiB + random_() % (4 * kMiB) : random_size(random_);
    Twin twin{static_cast<char*>(arena_.allocate(n, large && random_() % 2 == 0)), std::vector<char>(n)};
    std::memset(twin.copy.data(), static_cast<int>(random_() % 256), n);
    if (random_() % 4 == 0) fill(twin.copy);
    std::memcpy(twin.p, twin.copy.data(), n);
    twins_.push_back(std::move(twin));
  }

  // With what does not shrink, four bytes a draw: in the instrumented builds a draw takes longer than what is tested.
  void fill(std::vector<char>& bytes) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint32_t)) {
      auto word = static_cast<std::uint32_t>(random_());
      std::memcpy(bytes.data() + i, &word, std::min(sizeof word, bytes.size() - i));
    }
  }

  // It can be made anew of two others.
  void birth_of_a_sum() {
    if (twins_.empty()) return birth();
    const Twin &one = twins_[random_() % twins_.size()], &other = twins_[random_() % twins_.size()];
    std::size_t n = std::min(one.copy.size(), other.copy.size()) / 4 * 4;
    if (n > kMostOfASum) return birth();
    Twin sum{static_cast<char*>(arena_.allocate(n)), std::vector<char>(n)};
    for (std::size_t i = 0; i < n; i += 4) {
      std::uint32_t a, b;
      std::memcpy(&a, one.copy.data() + i, 4), std::memcpy(&b, other.copy.data() + i, 4);
      a += b;
      std::memcpy(sum.copy.data() + i, &a, 4);
    }
    std::memcpy(sum.p, sum.copy.data(), n);
    maker->keep(sum.p, n, one.p, other.p);
    twins_.push_back(std::move(sum));
  }

  void death() {
    if (twins_.empty()) return;
    std::swap(twins_[random_() % twins_.size()], twins_.back());
    check_some(twins_.back());
    release(twins_.back());
    twins_.pop_back();
  }

  void release(const Twin& t) { makes_ ? maker->release(t.p) : arena_.release(t.p); }

  void write(Twin& t) {
    std::size_t from = random_() % t.copy.size();
    std::size_t n = std::min<std::size_t>(t.copy.size() - from, 1 + random_() % 5000);
    std::memset(t.copy.data() + from, static_cast<int>(random_() % 256), n);
    std::memcpy(t.p + from, t.copy.data() + from, n);
  }

  void check_some(const Twin& t) {
    std::size_t from = random_() % t.copy.size();
    std::size_t n = std::min<std::size_t>(t.copy.size() - from, 1 + random_() % 5000);
    CHECK(std::memcmp(t.p + from, t.copy.data() + from, n) == 0);
  }

  void check_all(const Twin& t) { CHECK(std::memcmp(t.p, t.copy.data(), t.copy.size()) == 0); }

  void in_operator() {
    if (twins_.size() < 2) return;
    Twin& a = twins_[random_() % twins_.size()];
    Twin& b = twins_[random_() % twins_.size()];
    bool in_order = in_pieces_ && random_() % 2 == 0;
    if (makes_) maker->free(a.p);
    const Operand operands[] = {{a.p, Access::ReadWrite, 0, some(a, in_order)}, {b.p, Access::Read, 0, some(b, in_order)}};
    arena_.enter("stress", operands, in_order ? Work::InOrder : Work::Itself);
    std::size_t n = random_size(random_);
    auto* scratch = static_cast<char*>(arena_.allocate(n));
    std::memset(scratch, 3, n);
    write(a);
    check_some(b);
    CHECK(scratch[n - 1] == 3);
    arena_.release(scratch);
    arena_.exit();
  }

  // All of it, or for an operator that needs its operands at once a part that two pieces have.
  ByteRange some(const Twin& t, bool in_order) {
    if (in_order || t.copy.size() < 4 * kMiB) return {};
    std::uint64_t from = random_() % (t.copy.size() - 2 * kMiB);
    return {from, from + random_() % (2 * kMiB)};
  }

  Arena& arena_;
  std::mt19937 random_;
  std::vector<Twin> twins_;
  const Rank slowest_;
  const bool in_pieces_;
  const bool makes_;  // anew
};

struct Ground {
  std::uint64_t most_areas = 0;
  std::uint64_t least_piece = 0;
  std::uint64_t numa = 0;  // bytes of the last NUMA node, next to fast memory; 0: there is none
  std::uint64_t compressed = 0;  // bytes of compressed memory, likewise
  std::vector<Behaviour> in_place{};  // tiers that are used in place, next to it
  std::vector<Behaviour> middle{};  // tiers between these and the file
  bool makes = false;               // contents anew
};

void agrees_with_plain_memory(const Ground& ground) {
  const char* asked = std::getenv("EBBTIDE_STRESS_OPERATIONS");
  int operations = asked != nullptr ? std::atoi(asked) : 100000;
  if (ground.least_piece > 0) operations /= 4;  // of which each moves more
  Options options;
  options.chaos_rate = 0.02;
  options.chaos_seed = 11;
  options.most_areas = ground.most_areas;
  options.least_piece = ground.least_piece;
  if (ground.makes) start_maker(options);
  std::vector<MockTier*> middle;
  Tiers::List tiers;
  NumaTier* numa = nullptr;
  if (ground.numa > 0) {
    if (no_numa()) return;
    tiers.push_back(make_numa_tier(ground.numa));
    numa = static_cast<NumaTier*>(tiers.back().get());
  }
  const CompressedTier* compressed = nullptr;
  if (ground.compressed > 0) {
    tiers.push_back(std::make_unique<CompressedTier>(ground.compressed));
    compressed = static_cast<const CompressedTier*>(tiers.back().get());
  }
  std::vector<MockMemory*> in_place;
  for (const Behaviour& behaviour : ground.in_place) {
    tiers.push_back(std::make_unique<MockMemory>(behaviour));
    in_place.push_back(static_cast<MockMemory*>(tiers.back().get()));
  }
  for (const Behaviour& behaviour : ground.middle) {
    tiers.push_back(std::make_unique<MockTier>(behaviour));
    middle.push_back(static_cast<MockTier*>(tiers.back().get()));
  }
  tiers.push_back(std::make_unique<FileTier>(std::vector<std::string>{spill_directory()}));
  auto slowest = static_cast<Rank>(tiers.size());
  Arena& arena = make_arena(kLimit, options, std::move(tiers));
  if (ground.makes) maker->arena = &arena, maker->keeps = true;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Worker(arena, static_cast<unsigned>(t) + 1, slowest, ground.least_piece > 0, ground.makes).run(operations / kThreads);
      --running;
    });
  }
  std::mt19937 random(99);
  std::uint64_t most_compressed = 0, most_in_place = 0;
  while (running > 0) {
    if (compressed != nullptr) most_compressed = std::max(most_compressed, compressed->space().used);
    if (numa != nullptr) most_in_place = std::max(most_in_place, numa->space().used);
    arena.check_invariants();
    if (random() % 10 == 0) arena.set_limits(kLimit + random() % kLimit, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // the others want the mutex
  }
  for (std::thread& thread : threads) thread.join();
  while (numa != nullptr && numa->space().used > 0) std::this_thread::yield();  // what was under way drains
  for (const MockTier* tier : middle) {
    while (tier->space().used > 0) std::this_thread::yield();
  }
  for (const MockMemory* tier : in_place) {
    while (tier->space().used > 0) std::this_thread::yield();
  }
  arena.check_invariants();
  Counters c = arena.counters();
  std::printf("  moved out %.2f GB, in %.2f GB, %llu faults, %llu evictions cancelled by a write\n",
              static_cast<double>(c.evicted[4]) * 1e-9, static_cast<double>(c.fetched[4]) * 1e-9,
              static_cast<unsigned long long>(c.faults), static_cast<unsigned long long>(c.cancelled));
  CHECK(c.live == 0 && c.evicted[4] > 0 && c.fetched[4] > 0 && c.faults > 0);
  if (ground.makes) {
    std::printf("  made anew %.2f GB, of %d storages\n", static_cast<double>(c.made_anew) * 1e-9, maker->handed_over());
    CHECK(c.made_anew > 0 && arena.unmade() == 0);
  }
  if (numa != nullptr) {
    std::printf("  in %s: at most %s\n", numa->explain(0).where, BytesText(most_in_place).text);
    CHECK(most_in_place > 0 && most_in_place <= ground.numa);
  }
  if (compressed != nullptr) {
    std::printf("  compressed memory: at most %.1f MiB\n", static_cast<double>(most_compressed) / kMiB);
    CHECK(compressed->space().used == 0 && most_compressed > 0 && most_compressed <= compressed->space().capacity);
  }
  for (const MockMemory* tier : in_place) {
    std::printf("  memory used in place: %.2f GB taken, %.2f GB given back\n", static_cast<double>(tier->taken) * 1e-9,
                static_cast<double>(tier->given_back) * 1e-9);
    CHECK(tier->taken > 0 && tier->given_back > 0);
  }
  for (const MockTier* tier : middle) {
    std::printf("  a tier between: %llu chunks written, %llu read\n", static_cast<unsigned long long>(tier->writes.load()),
                static_cast<unsigned long long>(tier->reads.load()));
    CHECK(tier->writes > 0 && tier->reads > 0);
  }
}

}  // namespace

TEST(random_operations_from_several_threads_agree_with_plain_memory) { agrees_with_plain_memory({}); }

TEST(random_operations_agree_with_plain_memory_where_contents_are_made_anew) { agrees_with_plain_memory({.makes = true}); }

TEST(random_operations_agree_with_plain_memory_where_contents_are_made_anew_over_tiers_that_fail) {
  agrees_with_plain_memory({.in_place = {{.capacity = 16 * kMiB, .write_errors = 0.02}},
                            .middle = {{.capacity = 16 * kMiB, .write_errors = 0.02, .read_errors = 0.001}},
                            .makes = true});
}

TEST(random_operations_on_storages_in_pieces_agree_with_plain_memory) { agrees_with_plain_memory({.least_piece = 2 * kMiB}); }

TEST(random_operations_on_storages_in_pieces_agree_with_plain_memory_over_tiers_that_fail) {
  agrees_with_plain_memory({.least_piece = 2 * kMiB,
                            .in_place = {{.capacity = 16 * kMiB, .write_errors = 0.02}},
                            .middle = {{.capacity = 16 * kMiB, .write_errors = 0.02, .read_errors = 0.001}}});
}

// All the while storages are kept, or evicted by stretches, because they are many for so few areas.
TEST(random_operations_agree_with_plain_memory_where_memory_areas_run_short) { agrees_with_plain_memory({.most_areas = 160}); }

TEST(random_operations_agree_with_plain_memory_over_three_tiers) {
  agrees_with_plain_memory({.middle = {{.capacity = 24 * kMiB}}});
}

// The first is slow and refuses now and then, the second is small and cannot always be read: what one does not take, or
// does not give, another does.
TEST(random_operations_agree_with_plain_memory_over_four_tiers_that_fail_now_and_then) {
  agrees_with_plain_memory({.middle = {{.capacity = 16 * kMiB, .ns_per_mib = 100'000, .write_errors = 0.02},
                                       {.capacity = 8 * kMiB, .read_errors = 0.001}}});
}

TEST(random_operations_agree_with_plain_memory_over_memory_that_is_used_in_place) {
  agrees_with_plain_memory({.in_place = {{.capacity = 24 * kMiB}}});
}

// Two nodes, of which the nearer one is slow and refuses now and then, and a tier that fails.
TEST(random_operations_agree_with_plain_memory_over_five_tiers_of_which_two_are_used_in_place) {
  agrees_with_plain_memory({.in_place = {{.capacity = 16 * kMiB, .ns_per_mib = 50'000, .write_errors = 0.02, .read_errors = 0.02},
                                         {.capacity = 8 * kMiB, .write_errors = 0.01}},
                            .middle = {{.capacity = 16 * kMiB, .write_errors = 0.02, .read_errors = 0.001}}});
}

TEST(random_operations_agree_with_plain_memory_over_a_numa_node_and_the_file) { agrees_with_plain_memory({.numa = 24 * kMiB}); }

TEST(random_operations_agree_with_plain_memory_over_a_numa_node_and_a_tier_that_fails_now_and_then) {
  agrees_with_plain_memory({.numa = 8 * kMiB, .middle = {{.capacity = 16 * kMiB, .write_errors = 0.02, .read_errors = 0.001}}});
}

// A quarter of the storages does not shrink, and goes to the file.
TEST(random_operations_agree_with_plain_memory_over_compressed_memory) { agrees_with_plain_memory({.compressed = 24 * kMiB}); }

// It is nearly always full, and what it does not take goes to a tier that refuses now and then.
TEST(random_operations_agree_with_plain_memory_over_little_compressed_memory_and_a_tier_that_fails) {
  agrees_with_plain_memory(
      {.compressed = 256 * 1024, .middle = {{.capacity = 16 * kMiB, .write_errors = 0.02, .read_errors = 0.001}}});
}
