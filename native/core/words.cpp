#include "words.hpp"

#include <bit>
#include <cstring>

#include <immintrin.h>

// Compiled for every processor; the functions that need the instructions say so for themselves.
#define EBBTIDE_WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi2"), no_sanitize("thread")))

namespace ebbtide {

namespace {

using Word = std::uint64_t __attribute__((may_alias));

template <typename T>
constexpr std::size_t kGroup = 64 * sizeof(T);

template <typename T>
char* others(char* packed, std::size_t bytes) {
  return packed + bytes / sizeof(T) / 8;
}

template <typename T>
bool ends(const char* from, std::size_t packed, const char* in) {
  return round_up(static_cast<std::size_t>(in - from), 8) == packed;
}

template <typename T>
void pack_in_software(const char* from, std::size_t bytes, char* to) {
  auto* masks = reinterpret_cast<Word*>(to);
  char* out = others<T>(to, bytes);
  for (std::size_t at = 0; at < bytes; at += kGroup<T>) {
    std::uint64_t mask = 0;
    for (unsigned k = 0; k < 64; ++k) {
      T word;
      std::memcpy(&word, from + at + k * sizeof(T), sizeof word);
      std::memcpy(out, &word, sizeof word);
      std::uint64_t is = word != 0;
      mask |= is << k;
      out += is * sizeof(T);
    }
    *masks++ = mask;
  }
}

template <typename T>
__attribute__((no_sanitize("thread"))) bool unpack_in_software(const char* from, std::size_t packed, char* to,
                                                               std::size_t bytes) {
  auto* masks = reinterpret_cast<const Word*>(from);
  const char* in = others<T>(const_cast<char*>(from), bytes);
  for (std::size_t at = 0; at < bytes; at += kGroup<T>) {
    std::uint64_t mask = *masks++;
    for (unsigned k = 0; k < 64; ++k, mask >>= 1) {
      T word;
      std::memcpy(&word, in, sizeof word);
      word = static_cast<T>(word & -static_cast<T>(mask & 1));
      std::memcpy(to + at + k * sizeof(T), &word, sizeof word);
      in += (mask & 1) * sizeof(T);
    }
  }
  return ends<T>(from, packed, in);
}

// A vector at a time: 16 words of 4 bytes, or 32 of 2.
template <typename T>
EBBTIDE_WITH_AVX512 void pack_by_vectors(const char* from, std::size_t bytes, char* to) {
  constexpr unsigned kLanes = 64 / sizeof(T);
  auto* masks = reinterpret_cast<Word*>(to);
  char* out = others<T>(to, bytes);
  for (std::size_t at = 0; at < bytes; at += kGroup<T>) {
    std::uint64_t mask = 0;
    for (unsigned k = 0; k < 64; k += kLanes) {
      __m512i words = _mm512_loadu_si512(from + at + k * sizeof(T));
      std::uint64_t is;
      if constexpr (sizeof(T) == 4) {
        __mmask16 some = _mm512_test_epi32_mask(words, words);
        words = _mm512_maskz_compress_epi32(some, words);
        is = some;
      } else {
        __mmask32 some = _mm512_test_epi16_mask(words, words);
        words = _mm512_maskz_compress_epi16(some, words);
        is = some;
      }
      _mm512_storeu_si512(out, words);
      mask |= is << k;
      out += static_cast<unsigned>(__builtin_popcountll(is)) * sizeof(T);
    }
    *masks++ = mask;
  }
}

template <typename T>
EBBTIDE_WITH_AVX512 bool unpack_by_vectors(const char* from, std::size_t packed, char* to, std::size_t bytes) {
  constexpr unsigned kLanes = 64 / sizeof(T);
  auto* masks = reinterpret_cast<const Word*>(from);
  const char* in = others<T>(const_cast<char*>(from), bytes);
  for (std::size_t at = 0; at < bytes; at += kGroup<T>) {
    std::uint64_t mask = *masks++;
    for (unsigned k = 0; k < 64; k += kLanes) {
      __m512i words = _mm512_loadu_si512(in);
      std::uint64_t is;
      if constexpr (sizeof(T) == 4) {
        is = static_cast<std::uint16_t>(mask >> k);
        words = _mm512_maskz_expand_epi32(static_cast<__mmask16>(is), words);
      } else {
        is = static_cast<std::uint32_t>(mask >> k);
        words = _mm512_maskz_expand_epi16(static_cast<__mmask32>(is), words);
      }
      _mm512_storeu_si512(to + at + k * sizeof(T), words);
      in += static_cast<unsigned>(__builtin_popcountll(is)) * sizeof(T);
    }
  }
  return ends<T>(from, packed, in);
}

}  // namespace

template <typename T>
bool pack_two_values(const char* from, std::size_t bytes, char* to) {
  auto* masks = reinterpret_cast<Word*>(to);
  T value = 0;  // the first that is not zero
  for (std::size_t at = 0; at < bytes; at += kGroup<T>) {
    T words[64];
    std::memcpy(words, from + at, sizeof words);
    for (unsigned k = 0; k < 64 && value == 0; ++k) value = words[k];
    std::uint64_t mask = 0, odd = 0;
    for (unsigned k = 0; k < 64; ++k) {
      mask |= std::uint64_t{words[k] == value} << k;
      odd |= static_cast<std::uint64_t>(words[k] != value) & static_cast<std::uint64_t>(words[k] != 0);
    }
    if (odd != 0) return false;
    *masks++ = value == 0 ? 0 : mask;
  }
  *masks = value;
  return true;
}

template <typename T>
void unpack_two_values(const char* from, char* to, std::size_t bytes) {
  auto* masks = reinterpret_cast<const Word*>(from);
  auto value = static_cast<T>(masks[bytes / kGroup<T>]);
  for (std::size_t at = 0; at < bytes; at += kGroup<T>) {
    std::uint64_t mask = *masks++;
    T words[64];
    for (unsigned k = 0; k < 64; ++k) words[k] = static_cast<T>(value & -static_cast<T>(mask >> k & 1));
    std::memcpy(to + at, words, sizeof words);
  }
}

template <typename T>
Words words_in_software() {
  return {pack_in_software<T>, unpack_in_software<T>};
}

template <typename T>
Words words_of_processor() {
  bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi2");
  if (can) return {pack_by_vectors<T>, unpack_by_vectors<T>};
  return words_in_software<T>();
}

template bool pack_two_values<std::uint32_t>(const char*, std::size_t, char*);
template bool pack_two_values<std::uint16_t>(const char*, std::size_t, char*);
template void unpack_two_values<std::uint32_t>(const char*, char*, std::size_t);
template void unpack_two_values<std::uint16_t>(const char*, char*, std::size_t);
template Words words_in_software<std::uint32_t>();
template Words words_in_software<std::uint16_t>();
template Words words_of_processor<std::uint32_t>();
template Words words_of_processor<std::uint16_t>();

}  // namespace ebbtide
