// Words of 4 or 2 bytes without those that are zero: for 64 words a mask of those that are not, then all others in a row.
// ReLU leaves half of a tensor zero, scattered, which a compressor of bytes hardly sees.
//
// Processors with AVX-512 (and VBMI2, for 2 bytes) take 64 bytes at a time; both ways make the same bytes. Async-signal-safe;
// nothing is allocated. Packing may write, and unpacking read, 64 bytes beyond the end; a race detector does not
// see what is read there, which is ignored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.hpp"

namespace ebbtide {

// Of `bytes` (a multiple of 64 words) with so many zeros.
template <typename T>
constexpr std::size_t size_of_words(std::size_t bytes, std::size_t zeros) {
  return bytes / sizeof(T) / 8 + round_up(bytes - zeros * sizeof(T), 8);
}

struct Words {
  void (*pack)(const char* from, std::size_t bytes, char* to);
  // The `bytes` again; false: `packed` bytes are not what was packed, and up to `bytes` beyond them may have been read.
  bool (*unpack)(const char* from, std::size_t packed, char* to, std::size_t bytes);
};

// Words that are all zero or one other value, as dropout's masks in floating point: a bit for each, then the value.
// False: they are not.
template <typename T>
bool pack_two_values(const char* from, std::size_t bytes, char* to);
template <typename T>
void unpack_two_values(const char* from, char* to, std::size_t bytes);
template <typename T>
constexpr std::size_t size_of_two_values(std::size_t bytes) {
  return bytes / sizeof(T) / 8 + sizeof(std::uint64_t);
}

template <typename T>
Words words_in_software();
template <typename T>
Words words_of_processor();  // what it does best

}  // namespace ebbtide
