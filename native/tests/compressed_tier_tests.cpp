// The compressed tier alone: the bytes come back whatever they are, and what does not shrink or find room is refused.
#include <cerrno>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "compressible.hpp"

using namespace ebbtide;

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
        CHECK(tier.space().used <= round_up(n, kSmallPage) * 3 / 4 && (fill_with != zeros || tier.space().used == 0));
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
