// A checksum of what is written to the spill file, to be compared with what comes back.
//
// Word i of 8 bytes goes into lane i mod kLanes, each a CRC32C; the checksum is the CRC32C of the lanes. So processors
// that have the instruction take several words at a time, and any one, two or three flipped bits of a lane, or 32 in a
// row, give another checksum; of other damage one in 2^32 goes unseen.
//
// Async-signal-safe; nothing is allocated. A race detector does not see what it reads, rightly: a write that cancels
// an eviction races with it by design, and nothing that was taken meanwhile is used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ebbtide {

class Checksum {
 public:
  static constexpr std::size_t kLanes = 4;
  static constexpr std::size_t kUnit = kLanes * sizeof(std::uint64_t);

  // The next `bytes`, a multiple of kUnit, from an address that is a multiple of 8.
  void add(const void* from, std::size_t bytes) { take(lanes_, from, bytes); }
  std::uint32_t value() const;  // of all so far; never 0, which stands for "none was taken"

  using Take = void(std::uint32_t* lanes, const void* from, std::size_t bytes);
  // By tables, as every processor can; tests compare the two.
  static Take in_software;

 private:
  static Take* const take;  // what this processor does best

  std::uint32_t lanes_[kLanes] = {~0u, ~0u, ~0u, ~0u};
};

}  // namespace ebbtide
