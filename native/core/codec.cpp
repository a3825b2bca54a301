#include "codec.hpp"

#include <algorithm>
#include <cstring>

namespace ebbtide {

namespace {

using Word = std::uint64_t __attribute__((may_alias));
using Lanes = std::uint64_t __attribute__((vector_size(16), may_alias));
using Lanes32 = std::uint32_t __attribute__((vector_size(16)));
using Lanes16 = std::uint16_t __attribute__((vector_size(16)));

constexpr std::uint64_t kOnes = 0x0101010101010101ull;

// What one pass over a block finds.
struct Seen {
  std::uint64_t bits = 0;   // that are set in any of its words of 8 bytes
  std::size_t zeros32 = 0;  // words of 4 bytes that are zero
  std::size_t zeros16 = 0;  // of 2
};

template <typename Sums>
std::size_t sum(const Sums& lanes) {
  std::size_t all = 0;
  for (std::size_t i = 0; i < 16 / sizeof lanes[0]; ++i) all += lanes[i];
  return all;
}

// A lane of zeros16 counts to at most kBlock / 16.
__attribute__((no_sanitize("thread"))) Seen copy_and_look(const void* from, std::size_t bytes, void* to) {
  static_assert(Codec::kBlock / 16 < 65536);
  auto* in = static_cast<const Lanes*>(from);
  auto* out = static_cast<Lanes*>(to);
  Lanes any{};
  Lanes32 zeros32{};
  Lanes16 zeros16{};
  for (std::size_t i = 0; i < bytes / sizeof(Lanes); ++i) {
    Lanes word = in[i];
    out[i] = word;
    any |= word;
    zeros32 -= reinterpret_cast<Lanes32>(reinterpret_cast<Lanes32>(word) == 0);  // a lane is all ones where it holds
    zeros16 -= reinterpret_cast<Lanes16>(reinterpret_cast<Lanes16>(word) == 0);
  }
  return {any[0] | any[1], sum(zeros32), sum(zeros16)};
}

// --- bytes of 0 and 1 as bits

void pack_bits(const char* from, std::size_t bytes, char* to) {
  auto* in = reinterpret_cast<const Word*>(from);
  // Byte i's one bit goes to bit 56 + i: no two terms of the product meet.
  for (std::size_t i = 0; i < bytes / 8; ++i) to[i] = static_cast<char>(in[i] * 0x0102040810204080ull >> 56);
}

void unpack_bits(const char* from, std::size_t bytes, char* to) {
  auto* out = reinterpret_cast<Word*>(to);
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    std::uint64_t eight = static_cast<unsigned char>(from[i]) * kOnes & 0x8040201008040201ull;
    out[i] = (eight + 0x7F7F7F7F7F7F7F7Full) >> 7 & kOnes;  // no byte carries: it is a power of two or zero
  }
}

}  // namespace

// --- a block

Codec::Packed Codec::pack(const void* from, std::size_t bytes, char* to, char* copy) const {
  Seen seen = copy_and_look(from, bytes, copy);
  auto packed = [](Form form, std::size_t size) { return Packed{form, static_cast<std::uint32_t>(size)}; };
  if (seen.bits == 0) return packed(Form::Zeros, 0);
  if ((seen.bits & ~kOnes) == 0) {
    pack_bits(copy, bytes, to);
    return packed(Form::Bits, bytes / 8);
  }
  if (pack_two_values<std::uint32_t>(copy, bytes, to)) return packed(Form::Two32, size_of_two_values<std::uint32_t>(bytes));
  if (pack_two_values<std::uint16_t>(copy, bytes, to)) return packed(Form::Two16, size_of_two_values<std::uint16_t>(bytes));
  std::size_t most = most_of(bytes), size32 = size_of_words<std::uint32_t>(bytes, seen.zeros32),
              size16 = size_of_words<std::uint16_t>(bytes, seen.zeros16);
  if (std::min(size32, size16) <= most) {
    if (size32 <= size16) {
      words32_.pack(copy, bytes, to);
      return packed(Form::Words32, size32);
    }
    words16_.pack(copy, bytes, to);
    return packed(Form::Words16, size16);
  }
  std::memcpy(to, copy, bytes);
  return packed(Form::Plain, bytes);
}

bool Codec::unpack(Packed packed, const char* from, void* to, std::size_t bytes) const {
  auto* out = static_cast<char*>(to);
  switch (packed.form) {
    case Form::None:
      return false;
    case Form::Zeros:
      std::memset(out, 0, bytes);
      return true;
    case Form::Bits:
      unpack_bits(from, bytes, out);
      return packed.bytes == bytes / 8;
    case Form::Two32:
      unpack_two_values<std::uint32_t>(from, out, bytes);
      return packed.bytes == size_of_two_values<std::uint32_t>(bytes);
    case Form::Two16:
      unpack_two_values<std::uint16_t>(from, out, bytes);
      return packed.bytes == size_of_two_values<std::uint16_t>(bytes);
    case Form::Words32:
      return words32_.unpack(from, packed.bytes, out, bytes);
    case Form::Words16:
      return words16_.unpack(from, packed.bytes, out, bytes);
    case Form::Plain:
      std::memcpy(out, from, bytes);
      return packed.bytes == bytes;
  }
  return false;
}

}  // namespace ebbtide
