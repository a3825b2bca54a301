#include "checksum.hpp"

#include <array>

#include <nmmintrin.h>

// Compiled for every processor; the function that needs the instruction says so for itself.
#define EBBTIDE_WITH_CRC __attribute__((target("sse4.2"), no_sanitize("thread")))

namespace ebbtide {

namespace {

using Word = std::uint64_t __attribute__((may_alias));
using Table = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][byte]: what `byte` adds to the remainder when k bytes follow it.
constexpr Table make_tables() {
  Table tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82f63b78u : 0u);
    tables[0][byte] = remainder;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 255];
    }
  }
  return tables;
}

constexpr Table kTables = make_tables();

std::uint32_t next(std::uint32_t crc, std::uint64_t word) {
  word ^= crc;
  crc = 0;
  for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 255];
  return crc;
}

EBBTIDE_WITH_CRC inline std::uint64_t next_in_hardware(std::uint64_t crc, std::uint64_t word) { return _mm_crc32_u64(crc, word); }
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

EBBTIDE_WITH_CRC void take_in_hardware(std::uint32_t* lanes, const void* from, std::size_t bytes) {
  static_assert(Checksum::kLanes == 4);
  std::uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
  auto* word = static_cast<const Word*>(from);
  for (const Word* end = word + bytes / sizeof(Word); word < end; word += 4) {
    a = next_in_hardware(a, word[0]);
    b = next_in_hardware(b, word[1]);
    c = next_in_hardware(c, word[2]);
    d = next_in_hardware(d, word[3]);
  }
  lanes[0] = static_cast<std::uint32_t>(a);
  lanes[1] = static_cast<std::uint32_t>(b);
  lanes[2] = static_cast<std::uint32_t>(c);
  lanes[3] = static_cast<std::uint32_t>(d);
}

}  // namespace

__attribute__((no_sanitize("thread"))) void Checksum::in_software(std::uint32_t* lanes, const void* from, std::size_t bytes) {
  auto* word = static_cast<const Word*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(Word); ++i) lanes[i % kLanes] = next(lanes[i % kLanes], word[i]);
}

Checksum::Take* const Checksum::take = has_instruction() ? take_in_hardware : Checksum::in_software;

std::uint32_t Checksum::value() const {
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < kLanes; i += 2) crc = next(crc, lanes_[i] | std::uint64_t{lanes_[i + 1]} << 32);
  crc = ~crc;
  return crc != 0 ? crc : 1;
}

}  // namespace ebbtide
