// Contents that compressed memory is tested with, and its tier read as fast memory reads it.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>

#include "../core/compressed_tier.hpp"
#include "check.hpp"

namespace ebbtide {

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

inline void zeros(char* to, std::size_t n, std::mt19937&) { std::memset(to, 0, n); }
inline void ones(char* to, std::size_t n, std::mt19937&) { std::memset(to, 1, n); }
inline void noise(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 4) reinterpret_cast<std::uint32_t*>(to)[i / 4] = static_cast<std::uint32_t>(random());
}
inline void bools(char* to, std::size_t n, std::mt19937& random) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < n; ++i, bits >>= 1) {
    if (i % 32 == 0) bits = static_cast<std::uint32_t>(random());
    to[i] = static_cast<char>(bits & 1);
  }
}
// As ReLU leaves them: half are zero.
template <typename Word>
void half_zeros(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += sizeof(Word)) {
    auto bits = static_cast<std::uint32_t>(random());
    reinterpret_cast<Word*>(to)[i / sizeof(Word)] = static_cast<Word>((bits >> 31) != 0 ? bits : 0);
  }
}
constexpr Fill* relu = half_zeros<std::uint32_t>;
constexpr Fill* relu16 = half_zeros<std::uint16_t>;
// As dropout keeps its masks in floating point.
inline void mask32(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 4) reinterpret_cast<float*>(to)[i / 4] = random() % 10 == 0 ? 0.0f : 1.0f / 0.9f;
}
inline void mask16(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 2) reinterpret_cast<std::uint16_t*>(to)[i / 2] = random() % 2 == 0 ? 0 : 0x3F8E;
}
// One value or zero but for the last word.
inline void nearly(char* to, std::size_t n, std::mt19937& random) {
  for (std::size_t i = 0; i < n; i += 4) reinterpret_cast<float*>(to)[i / 4] = random() % 2 == 0 ? 0.0f : 1.0f / 0.9f;
  to[n - 2] = 77;
}
// Each block is of another kind, and a few do not shrink.
inline void mixed(char* to, std::size_t n, std::mt19937& random) {
  Fill* const kinds[] = {zeros, bools, relu, relu16, noise, ones, mask16, mask32};
  for (std::size_t at = 0; at < n; at += Codec::kBlock)
    kinds[at / Codec::kBlock % 8](to + at, std::min(Codec::kBlock, n - at), random);
}
// Only single bytes differ from zero, at the ends of words and groups of them.
inline void corners(char* to, std::size_t n, std::mt19937& random) {
  std::memset(to, 0, n);
  for (std::size_t i = 0; i < n; i += 256) to[i + (random() % 4) * 63] = static_cast<char>(2 + random() % 200);
}

constexpr Fill* kShrink[] = {zeros, ones, bools, relu, relu16, mixed, corners, mask32, mask16, nearly};
constexpr std::size_t kSizes[] = {16 * kKiB, 60 * kKiB, 64 * kKiB, 68 * kKiB, 1000 * kKiB, 4 * kMiB - 4 * kKiB, 4 * kMiB};

inline bool reads(const Tier& tier, const Extent& chunk, const Bytes& to) {
  std::memset(to.get(), 0x5A, chunk.bytes);
  iovec part{to.get(), chunk.bytes};
  return tier.read(chunk, &part, 1) == 0;
}

}  // namespace ebbtide
