// The compressed tier under several threads and in an arena: what does not shrink or find room goes past it, and nothing of it
// is left over.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../core/file_tier.hpp"
#include "compressible.hpp"

using namespace ebbtide;

TEST(compressed_chunks_are_written_and_read_by_several_threads_and_nothing_is_left) {
  CompressedTier tier(8 * kMiB);  // each thread alone would fill it
  std::atomic<int> full{0}, refused{0};
  auto work = [&](unsigned number) {
    std::mt19937 random(number);
    Bytes from(kMiB), to(kMiB);
    struct Written {
      Extent chunk;
      Fill* fill_with;
      unsigned seed;
    };
    std::vector<Written> written;
    for (unsigned i = 0; i < 100; ++i) {
      std::uint64_t begin = (number * std::uint64_t{64} + i % 64) * kMiB;
      std::erase_if(written, [&](const Written& w) {
        if (w.chunk.begin != begin) return false;
        std::mt19937 own(w.seed);
        w.fill_with(from.get(), w.chunk.bytes, own);
        CHECK(reads(tier, w.chunk, to) && std::memcmp(from.get(), to.get(), w.chunk.bytes) == 0);
        tier.release(w.chunk);
        return true;
      });
      Written w{
          {1, begin, kSmallPage * (2 + random() % 255)}, random() % 8 == 0 ? noise : kShrink[random() % std::size(kShrink)], i};
      std::mt19937 own(w.seed);
      w.fill_with(from.get(), w.chunk.bytes, own);
      int error = tier.reserve(w.chunk);
      if (error == 0) error = tier.write(w.chunk, from.get());
      if (error == 0) {
        written.push_back(w);
      } else {
        CHECK(error == ENOSPC || error == EFBIG);
        ++(error == ENOSPC ? full : refused);
        tier.release(w.chunk);
      }
    }
    for (const Written& w : written) tier.release(w.chunk);
  };
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) threads.emplace_back(work, number);
  for (std::thread& thread : threads) thread.join();
  CHECK(tier.space().used == 0 && full > 0 && refused > 0);
  // The pool is one run again: as much as ever fits.
  Bytes from(4 * kMiB);
  std::mt19937 random(10);
  relu(from.get(), from.size(), random);
  std::uint64_t chunks = 0;
  while (tier.write({0, chunks * 4 * kMiB, 4 * kMiB}, from.get()) == 0) ++chunks;
  CHECK(chunks == 3);  // of 2.1 MiB
}

// Threads of the parent hold locks and work areas at that moment; the child has neither these threads nor them.
TEST(a_forked_child_reads_compressed_chunks_while_its_parent_writes_others) {
  CompressedTier tier(64 * kMiB);
  std::mt19937 random(11);
  const Extent kept{1, 9 * kSmallPage, 900 * kKiB};
  Bytes from(kept.bytes), to(kept.bytes);
  mixed(from.get(), kept.bytes, random);
  CHECK(tier.write(kept, from.get()) == 0);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned number = 1; number <= 3; ++number) {
    threads.emplace_back([&, number] {
      Bytes own(kMiB);
      std::mt19937 seed(number);
      relu(own.get(), kMiB, seed);
      while (!stop) {
        CHECK(tier.write({0, number * 4 * kMiB, kMiB}, own.get()) == 0);
        tier.release({0, number * 4 * kMiB, kMiB});
      }
    });
  }
  for (int i = 0; i < 40; ++i) {
    CHECK(in_child([&] {
      std::memset(to.get(), 0x5A, kept.bytes);
      iovec parts[2] = {{to.get(), 100 * kKiB}, {to.get() + 100 * kKiB, 800 * kKiB}};
      return tier.read(kept, parts, 2) == 0 && std::memcmp(from.get(), to.get(), kept.bytes) == 0;
    }));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

// --- in an arena, with a file behind it

namespace {
struct Ground {
  CompressedTier* compressed;
  Arena* arena;
  explicit Ground(std::uint64_t capacity, std::uint64_t limit = 0) {
    Tiers::List tiers;
    tiers.push_back(std::make_unique<CompressedTier>(capacity));
    compressed = static_cast<CompressedTier*>(tiers.back().get());
    tiers.push_back(std::make_unique<FileTier>(std::vector<std::string>{spill_directory()}));
    arena = &make_arena(limit, {}, std::move(tiers));
  }
  char* birth(std::size_t n, Fill* fill_with, unsigned seed) {
    auto* p = static_cast<char*>(arena->allocate(n));
    std::mt19937 random(seed);
    fill_with(p, n / kSmallPage * kSmallPage, random);
    return p;
  }
};

bool has(const char* p, std::size_t n, Fill* fill_with, unsigned seed) {
  Bytes expected(n);
  std::mt19937 random(seed);
  fill_with(expected.get(), n / kSmallPage * kSmallPage, random);
  return std::memcmp(p, expected.get(), n / kSmallPage * kSmallPage) == 0;
}
}  // namespace

TEST(an_arena_keeps_what_shrinks_in_memory_and_writes_what_does_not_to_the_file) {
  Ground ground(64 * kMiB);
  for (std::size_t n : {100 * kKiB, 5 * kMiB + 12 * kKiB, 12 * kMiB}) {
    char* mask = ground.birth(n, bools, 1);
    char* weights = ground.birth(n, noise, 2);
    CHECK(ground.arena->evict(mask) > 0 && ground.arena->evict(weights) > 0);
    CHECK(ground.arena->tiers_with(mask) == bit(1) && ground.arena->tiers_with(weights) == bit(2));
    CHECK(ground.compressed->space().used > 0 && ground.compressed->space().used <= round_up(n / 8, kSmallPage) + 4 * kSmallPage);
    CHECK(has(mask, n, bools, 1) && has(weights, n, noise, 2));
    ground.arena->release(mask), ground.arena->release(weights);
    CHECK(ground.compressed->space().used == 0);
    ground.arena->check_invariants();
  }
}

TEST(an_arena_goes_past_a_full_compressed_tier) {
  Ground ground(kMiB);
  std::vector<char*> masks;
  for (unsigned i = 0; i < 6; ++i) masks.push_back(ground.birth(4 * kMiB, bools, i));  // 512 KiB each
  for (unsigned i = 0; i < 6; ++i) {
    CHECK(ground.arena->evict(masks[i]) > 0 && ground.arena->tiers_with(masks[i]) == bit(i < 2 ? 1 : 2));
  }
  CHECK(ground.compressed->space().used == kMiB && ground.arena->counters().tier_peak[0] == kMiB);
  for (unsigned i = 0; i < 6; ++i) CHECK(has(masks[i], 4 * kMiB, bools, i));
  ground.arena->check_invariants();
  for (char* mask : masks) ground.arena->release(mask);
  CHECK(ground.compressed->space().used == 0);
}

namespace {
std::int64_t packed_of(const Recording& r, std::uint64_t nbytes) {
  auto found = std::ranges::find(r.storages, nbytes, &RecordedStorage::nbytes);
  CHECK(found != r.storages.end());
  return found->packed_bytes;
}
}  // namespace

TEST(a_recording_has_what_contents_take_after_the_last_operator_that_wrote_them) {
  Ground ground(64 * kMiB);
  Arena& arena = *ground.arena;
  std::mt19937 random(13);
  char* weights = ground.birth(2 * kMiB, noise, 1);
  char* kept = ground.birth(3 * kMiB, bools, 2);
  char* unused = ground.birth(4 * kMiB, zeros, 3);
  arena.begin_step(true);
  Operand reads[] = {{weights, Access::Read}, {kept, Access::Read}};
  arena.enter("outer", reads, Work::Itself);
  arena.enter("inner", {}, Work::Itself);
  auto* output = static_cast<char*>(arena.allocate(5 * kMiB));
  arena.exit();  // who called it is about to fill it
  noise(output, 5 * kMiB, random);
  arena.exit();
  Operand writes[] = {{output, Access::ReadWrite}};
  arena.enter("relu_", writes, Work::Itself);
  relu(output, 5 * kMiB, random);
  arena.exit();
  Operand gone[] = {{kept, Access::Write}};
  arena.enter("fill", gone, Work::Itself);
  noise(kept, 3 * kMiB, random);
  arena.exit();
  arena.end_step();
  Recording r = arena.tape().take();
  CHECK(packed_of(r, 2 * kMiB) == kNotPacked && packed_of(r, 3 * kMiB) == kNotPacked && packed_of(r, 4 * kMiB) == kUnknown);
  std::int64_t packed = packed_of(r, 5 * kMiB);
  CHECK(packed > (5 << 19) && packed < (3 << 20));
  CHECK(r.ticks.back().stalled_ns > 0 && r.stalled_ns > r.ticks.back().stalled_ns);  // what looking took
  CHECK(arena.evict(output) > 0 && arena.tiers_with(output) == bit(1));
  CHECK(std::abs(packed - static_cast<std::int64_t>(ground.compressed->space().used)) < 100'000);
  for (char* p : {weights, kept, unused, output}) arena.release(p);
}

// All of them look, evict and fetch at once; a storage that dies meanwhile is not told of.
TEST(contents_are_looked_at_by_several_threads_that_move_them) {
  Ground ground(8 * kMiB, 12 * kMiB);
  Arena& arena = *ground.arena;
  arena.begin_step(true);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random(number);
      Fill* const fill_with = number % 2 == 0 ? bools : noise;
      std::vector<char*> mine;
      for (unsigned i = 0; i < 40; ++i) {
        if (mine.size() < 4) {
          mine.push_back(static_cast<char*>(arena.allocate(kMiB + number * kSmallPage)));
        } else if (i % 7 == 0) {
          arena.release(mine.back());
          mine.pop_back();
        }
        char* p = mine[random() % mine.size()];
        Operand operand[] = {{p, Access::Write}};
        arena.enter("fill", operand, Work::Itself);
        fill_with(p, 64 * kKiB, random);
        std::memset(p + 64 * kKiB, 0, kMiB - 64 * kKiB);
        arena.exit();
        arena.evict(mine[random() % mine.size()]);
      }
      for (char* p : mine) arena.release(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  arena.end_step();
  Recording r = arena.tape().take();
  CHECK(!r.storages.empty());
  for (const RecordedStorage& storage : r.storages) {  // a block of noise, and fifteen of zeros
    CHECK(storage.packed_bytes <= static_cast<std::int64_t>(storage.nbytes));
    if (storage.packed_bytes >= 0) CHECK(storage.packed_bytes % static_cast<std::int64_t>(kSmallPage) == 0);
  }
  arena.check_invariants();
  CHECK(ground.compressed->space().used == 0);
}

TEST(what_compressed_memory_refuses_is_no_copy_in_a_recording) {
  Ground ground(64 * kMiB);
  Arena& arena = *ground.arena;
  char* weights = ground.birth(2 * kMiB, noise, 1);
  arena.begin_step(true);
  CHECK(arena.evict(weights) > 0 && arena.tiers_with(weights) == bit(2));
  arena.end_step();
  Recording r = arena.tape().take();
  CHECK(r.spans.size() == 1 && r.spans[0].target == 2);
}

TEST(contents_are_copied_between_compressed_memory_and_the_file) {
  Ground ground(64 * kMiB);
  char* mask = ground.birth(6 * kMiB, bools, 1);
  char* weights = ground.birth(6 * kMiB, noise, 2);
  CHECK(ground.arena->evict(mask, 2) > 0 && ground.arena->evict(weights, 2) > 0);
  CHECK(ground.arena->copy(mask, 2, 1, Then::Keep) && !ground.arena->copy(weights, 2, 1, Then::Keep));
  CHECK(ground.arena->tiers_with(mask) == (bit(1) | bit(2)) && ground.arena->tiers_with(weights) == bit(2));
  CHECK(has(mask, 6 * kMiB, bools, 1) && has(weights, 6 * kMiB, noise, 2));
  mask[0] = 2;  // it is in fast memory alone
  CHECK(ground.compressed->space().used == 0);
}

TEST(a_forked_child_reads_what_an_arena_compressed) {
  for (std::size_t n : {100 * kKiB, 5 * kMiB + 4 * kKiB}) {
    Ground ground(64 * kMiB);
    char* mask = ground.birth(n, bools, 1);
    char* floats = ground.birth(n, relu, 2);
    CHECK(ground.arena->evict(mask) > 0 && ground.arena->evict(floats) > 0);
    CHECK(ground.arena->tiers_with(mask) == bit(1) && ground.arena->tiers_with(floats) == bit(1));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(has(mask, n, bools, 1) && has(floats, n, relu, 2) ? 0 : 1);
    CHECK(has(floats, n, relu, 2));  // the parent's own
    int status = 1;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(has(mask, n, bools, 1));
  }
}
