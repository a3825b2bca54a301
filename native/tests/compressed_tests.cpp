// The compressed tier: the bytes come back whatever they are, what does not shrink or find room goes past it, and nothing of
// it is left over.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../core/compressed_tier.hpp"
#include "../core/file_tier.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {

constexpr std::size_t kKiB = 1024;

// Bytes on pages of their own.
class Bytes {
 public:
  explicit Bytes(std::size_t n) : memory_(n, kSmallPage, PROT_READ | PROT_WRITE) {}
  ~Bytes() { munmap(memory_.begin(), memory_.size()); }
  Bytes(const Bytes&) = delete;
  char* get() const { return memory_.begin(); }
  std::size_t size() const { return memory_.size(); }

 private:
  Reservation memory_;
};

using Fill = void(char* to, std::size_t n, std::mt19937& random);

void zeros(char* to, std::size_t n, std::mt19937&) { std::memset(to, 0, n); }
void ones(char* to, std::size_t n, std::mt19937&) { std::memset(to, 1, n); }
void noise(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 4) reinterpret_cast<std::uint32_t*>(to)[i / 4] = static_cast<std::uint32_t>(random());
}
void bools(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<char>(random() & 1);
}
// As ReLU leaves them: half are zero.
void relu(char* to, std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < n; i += 4) reinterpret_cast<float*>(to)[i / 4] = std::max(0.0f, normal(random));
}
void relu16(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 2) {
    auto bits = static_cast<std::uint32_t>(random());
    reinterpret_cast<std::uint16_t*>(to)[i / 2] = static_cast<std::uint16_t>((bits >> 31) != 0 ? bits : 0);
  }
}
// As dropout keeps its masks in floating point.
void mask32(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 4) reinterpret_cast<float*>(to)[i / 4] = random() % 10 == 0 ? 0.0f : 1.0f / 0.9f;
}
void mask16(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 2) reinterpret_cast<std::uint16_t*>(to)[i / 2] = random() % 2 == 0 ? 0 : 0x3F8E;
}
// One value or zero but for the last word.
void nearly(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 4) reinterpret_cast<float*>(to)[i / 4] = random() % 2 == 0 ? 0.0f : 1.0f / 0.9f;
  to[n - 2] = 77;
}
// Each block is of another kind, and a few do not shrink.
void mixed(char* to, std::size_t n, std::mt19937& random) {
  Fill* const kinds[] = {zeros, bools, relu, relu16, noise, ones, mask16, mask32};
  for (std::size_t at = 0; at < n; at += Codec::kBlock)
    kinds[at / Codec::kBlock % 8](to + at, std::min(Codec::kBlock, n - at), random);
}
// Only single bytes differ from zero, at the ends of words and groups of them.
void corners(char* to, std::size_t n, std::mt19937& random) {
  std::memset(to, 0, n);
  for (std::size_t i = 0; i < n; i += 256) to[i + (random() % 4) * 63] = static_cast<char>(2 + random() % 200);
}

constexpr Fill* kShrink[] = {zeros, ones, bools, relu, relu16, mixed, corners, mask32, mask16, nearly};
constexpr std::size_t kSizes[] = {16 * kKiB, 60 * kKiB, 64 * kKiB, 68 * kKiB, 1000 * kKiB, 4 * kMiB - 4 * kKiB, 4 * kMiB};

bool reads(const Tier& tier, const Extent& chunk, const Bytes& to) {
  std::memset(to.get(), 0x5A, chunk.bytes);
  iovec part{to.get(), chunk.bytes};
  return tier.read(chunk, &part, 1) == 0;
}

std::uint64_t rounded(std::uint64_t bytes) { return round_up(bytes, kSmallPage); }

}  // namespace

TEST(compressed_bytes_come_back_at_every_size_and_place) {
  CompressedTier tier(64 * kMiB);
  std::mt19937 random(1);
  Bytes from(4 * kMiB), to(4 * kMiB);
  for (Fill* fill_with : kShrink) {
    for (std::size_t n : kSizes) {
      for (Extent chunk : {Extent{0, 10 * kHugePage, n}, Extent{1, 37 * kSmallPage, n}}) {
        fill_with(from.get(), n, random);
        CHECK(tier.reserve(chunk) == 0);
        CHECK(tier.write(chunk, from.get()) == 0);
        CHECK(tier.space().used <= rounded(n) * 3 / 4 && (fill_with != zeros || tier.space().used == 0));
        CHECK(reads(tier, chunk, to) && std::memcmp(from.get(), to.get(), n) == 0);
        tier.release(chunk);
        CHECK(tier.space().used == 0 && !reads(tier, chunk, to));
      }
    }
  }
}

TEST(compressed_booleans_take_a_bit_each_and_half_zeros_a_little_over_half) {
  CompressedTier tier(64 * kMiB);
  std::mt19937 random(2);
  Bytes from(4 * kMiB);
  const Extent chunk{0, 0, 4 * kMiB};
  auto used = [&](Fill* fill_with) {
    fill_with(from.get(), from.size(), random);
    CHECK(tier.reserve(chunk) == 0 && tier.write(chunk, from.get()) == 0);
    std::uint64_t bytes = tier.space().used;
    tier.release(chunk);
    return static_cast<double>(bytes) / static_cast<double>(from.size());
  };
  CHECK(used(bools) == 0.125);
  CHECK(std::abs(used(relu) - (0.5 + 1.0 / 32)) < 0.01);
  CHECK(std::abs(used(relu16) - (0.5 + 1.0 / 16)) < 0.01);
  CHECK(std::abs(used(mask32) - 1.0 / 32) < 0.005 && std::abs(used(mask16) - 1.0 / 16) < 0.005);
}

// As fast memory's pages lie: in parts, and in calls that begin anywhere.
TEST(compressed_chunks_are_read_in_parts_of_any_pages) {
  CompressedTier tier(64 * kMiB);
  std::mt19937 random(3);
  const std::size_t n = 1000 * kKiB;
  Bytes from(n), to(n);
  mixed(from.get(), n, random);
  for (Extent chunk : {Extent{0, 4 * kHugePage, n}, Extent{1, 5 * kSmallPage, n}}) {
    CHECK(tier.write(chunk, from.get()) == 0);
    for (int round = 0; round < 50; ++round) {
      std::memset(to.get(), 0x5A, n);
      for (std::size_t at = 0; at < n;) {
        iovec parts[64];
        std::size_t bytes = 0;
        int count = 0;
        for (int most = 1 + static_cast<int>(random() % 64); count < most && at + bytes < n; ++count) {
          std::size_t length = std::min(n - at - bytes, kSmallPage * (1 + random() % (random() % 4 == 0 ? 40 : 2)));
          parts[count] = {to.get() + at + bytes, length};
          bytes += length;
        }
        CHECK(tier.read({chunk.region, chunk.begin + at, bytes}, parts, count) == 0);
        at += bytes;
      }
      CHECK(std::memcmp(from.get(), to.get(), n) == 0);
    }
    tier.release(chunk);
  }
}

TEST(compressed_neighbours_in_the_small_region_do_not_touch) {
  CompressedTier tier(64 * kMiB);
  std::mt19937 random(4);
  Bytes from(20 * kSmallPage), to(20 * kSmallPage);
  std::vector<Extent> chunks;
  for (std::uint64_t at = 3, i = 0; i < 40; at += 2 + i % 18, ++i)
    chunks.push_back({1, at * kSmallPage, (2 + i % 18) * kSmallPage});
  auto fill_of = [&](std::size_t i) {
    std::mt19937 own(static_cast<unsigned>(i));
    corners(from.get(), chunks[i].bytes, own);
    fill(from.get(), 64, static_cast<unsigned>(i));
  };
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    fill_of(i);
    CHECK(tier.write(chunks[i], from.get()) == 0);
  }
  for (std::size_t i = 0; i < chunks.size(); i += 2) tier.release(chunks[i]);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    fill_of(i);
    CHECK(reads(tier, chunks[i], to) == (i % 2 == 1));
    if (i % 2 == 1) CHECK(std::memcmp(from.get(), to.get(), chunks[i].bytes) == 0);
  }
  for (const Extent& chunk : chunks) tier.release(chunk);
  CHECK(tier.space().used == 0);
}

TEST(what_does_not_shrink_is_refused_and_leaves_nothing) {
  CompressedTier tier(64 * kMiB);
  std::mt19937 random(5);
  Bytes from(4 * kMiB), to(4 * kMiB);
  noise(from.get(), from.size(), random);
  for (std::size_t n : kSizes) {
    for (Extent chunk : {Extent{0, 0, n}, Extent{1, 3 * kSmallPage, n}}) {
      CHECK(tier.reserve(chunk) == 0 && tier.write(chunk, from.get()) == EFBIG);
      CHECK(tier.space().used == 0 && !reads(tier, chunk, to));
      tier.release(chunk);
    }
  }
  CHECK(std::strstr(tier.explain(EFBIG).cure, "slower tier") != nullptr);
}

TEST(a_full_compressed_tier_says_so_and_takes_more_when_something_leaves) {
  CompressedTier tier(kMiB);
  std::mt19937 random(6);
  Bytes from(2 * kMiB), to(2 * kMiB);
  bools(from.get(), from.size(), random);  // 256 KiB each
  std::uint64_t at = 0;
  auto next = [&] { return Extent{0, at++ * 2 * kMiB, 2 * kMiB}; };
  for (int i = 0; i < 4; ++i) {
    Extent chunk = next();
    CHECK(tier.reserve(chunk) == 0 && tier.write(chunk, from.get()) == 0);
  }
  CHECK(tier.space().used == tier.space().capacity);
  Extent last = next();
  CHECK(tier.reserve(last) == ENOSPC && tier.write(last, from.get()) == ENOSPC && tier.space().used == kMiB);
  CHECK(tier.reserve({0, std::uint64_t{1} << 40, kMiB}) == ENOSPC);  // beyond all regions
  tier.release({0, 0, 2 * kMiB});
  CHECK(tier.reserve(last) == 0 && tier.write(last, from.get()) == 0 && tier.space().used == kMiB);
  CHECK(reads(tier, last, to) && std::memcmp(from.get(), to.get(), from.size()) == 0);
}

TEST(a_compressed_chunk_written_anew_takes_no_more) {
  CompressedTier tier(64 * kMiB);
  std::mt19937 random(7);
  Bytes from(3 * kMiB), to(3 * kMiB);
  const Extent whole{1, 7 * kSmallPage, 11 * kMiB};  // three chunks of it are written, the last is not whole
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t begin : {0, 4}) {
      Extent chunk{1, whole.begin + begin * kMiB, 3 * kMiB};
      bools(from.get(), from.size(), random);
      CHECK(tier.write(chunk, from.get()) == 0);
      CHECK(reads(tier, chunk, to) && std::memcmp(from.get(), to.get(), from.size()) == 0);
    }
    CHECK(tier.space().used == 2 * 3 * kMiB / 8);
  }
  noise(from.get(), from.size(), random);
  CHECK(tier.write({1, whole.begin, 3 * kMiB}, from.get()) == EFBIG && tier.space().used == 3 * kMiB / 8);
  tier.release(whole);
  tier.release(whole);
  CHECK(tier.space().used == 0);
}

// Whoever released it has it back: what the process has resident follows its used bytes.
TEST(released_compressed_memory_goes_back_to_the_kernel) {
  CompressedTier tier(256 * kMiB);
  std::mt19937 random(8);
  Bytes from(4 * kMiB);
  relu(from.get(), from.size(), random);
  std::uint64_t before = process_memory().resident;
  for (std::uint64_t i = 0; i < 40; ++i) CHECK(tier.write({0, i * 4 * kMiB, 4 * kMiB}, from.get()) == 0);
  std::uint64_t full = process_memory().resident;
  CHECK(tier.space().used > 80 * kMiB && full > before + 80 * kMiB);
  for (std::uint64_t i = 0; i < 40; ++i) tier.release({0, i * 4 * kMiB, 4 * kMiB});
  CHECK(tier.space().used == 0 && process_memory().resident < full - 80 * kMiB);
}

TEST(damaged_compressed_bytes_are_told_or_come_back_within_their_bounds) {
  const Codec codecs[] = {Codec(), Codec(words_in_software<std::uint32_t>(), words_in_software<std::uint16_t>())};
  std::mt19937 random(9);
  Bytes from(Codec::kBlock), to(3 * Codec::kBlock), packed(2 * Codec::kBlock), copy(Codec::kBlock);
  int told = 0;
  for (Fill* fill_with : {relu, relu16, mask32, mask16}) {
    for (int round = 0; round < 300; ++round) {
      const Codec& codec = codecs[round % 2];
      fill_with(from.get(), from.size(), random);
      Codec::Packed p = codec.pack(from.get(), from.size(), packed.get(), copy.get());
      for (int flips = 0; flips < 8; ++flips) packed.get()[random() % p.bytes] ^= static_cast<char>(1 + random() % 255);
      std::memset(to.get(), 0x5A, to.size());
      if (!codec.unpack(p, packed.get(), to.get() + Codec::kBlock, from.size())) ++told;
      for (std::size_t i = 0; i < Codec::kBlock; ++i) CHECK(to.get()[i] == 0x5A && to.get()[2 * Codec::kBlock + i] == 0x5A);
    }
  }
  CHECK(told > 0);
}

namespace {
template <typename T>
void compare_words(const Words& a, const Words& b) {
  std::mt19937 random(12);
  Bytes from(Codec::kBlock), to(2 * Codec::kBlock), one(2 * Codec::kBlock), other(2 * Codec::kBlock);
  for (std::size_t bytes : {kSmallPage, 5 * kSmallPage, Codec::kBlock}) {
    for (unsigned share : {0, 1, 8, 15, 16}) {  // sixteenths that are not zero
      std::size_t zeros_there = 0;
      for (std::size_t i = 0; i < bytes; i += sizeof(T)) {
        T word = random() % 16 < share ? static_cast<T>(random() % 1000 + 1) : T{0};
        zeros_there += word == 0;
        std::memcpy(from.get() + i, &word, sizeof word);
      }
      std::size_t packed = size_of_words<T>(bytes, zeros_there), end = bytes - zeros_there * sizeof(T) + bytes / sizeof(T) / 8;
      a.pack(from.get(), bytes, one.get());
      b.pack(from.get(), bytes, other.get());
      CHECK(std::memcmp(one.get(), other.get(), end) == 0);
      for (const Words& words : {a, b}) {
        std::memset(to.get(), 0x5A, to.size());
        CHECK(words.unpack(one.get(), packed, to.get(), bytes) && std::memcmp(from.get(), to.get(), bytes) == 0);
        CHECK(to.get()[bytes] == 0x5A && !words.unpack(one.get(), packed + 8, to.get(), bytes));
      }
    }
  }
}
}  // namespace

TEST(compressed_words_are_the_same_in_software_and_as_the_processor_does_it) {
  compare_words<std::uint32_t>(words_in_software<std::uint32_t>(), words_of_processor<std::uint32_t>());
  compare_words<std::uint16_t>(words_in_software<std::uint16_t>(), words_of_processor<std::uint16_t>());
}

TEST(a_capacity_that_compressed_memory_cannot_have_is_refused) {
  for (std::uint64_t capacity : {std::uint64_t{0}, std::uint64_t{1} << 50})
    CHECK(has(refusal_of([&] { CompressedTier tier(capacity); }), "256 GiB"));
}

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
    CHECK(ground.compressed->space().used > 0 && ground.compressed->space().used <= rounded(n / 8) + 4 * kSmallPage);
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

TEST(a_sample_tells_about_what_contents_take_and_which_are_refused) {
  CompressedTier tier(256 * kMiB);
  std::mt19937 random(12);
  for (std::size_t n : {4 * kKiB, 100 * kKiB, 900 * kKiB, 5 * kMiB, 12 * kMiB + 16 * kKiB}) {
    for (Fill* fill_with : {zeros, bools, relu, relu16, mask32, mask16, noise}) {
      Bytes from(n);
      fill_with(from.get(), n, random);
      auto told = tier.packed_bytes(from.get(), n);
      CHECK(tier.space().used == 0);  // looking keeps nothing
      int error = 0;
      for (std::uint64_t at = 0; at < n && error == 0; at += kChunk)
        error = tier.write({0, at, std::min<std::uint64_t>(kChunk, n - at)}, from.get() + at);
      CHECK(told.has_value() == (error == 0));
      if (told) CHECK(*told + n / 50 + kSmallPage >= tier.space().used && *told <= tier.space().used + n / 50 + kSmallPage);
      tier.release({0, 0, n});
    }
  }
  // One chunk that is refused is enough.
  Bytes from(8 * kMiB);
  noise(from.get() + 4 * kMiB, 4 * kMiB, random);
  CHECK(!tier.packed_bytes(from.get(), 8 * kMiB) && tier.packed_bytes(from.get(), 4 * kMiB) == std::uint64_t{0});
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
