// Packs a block of bytes into fewer, and back. It looks for what training's storages hold: nothing but zeros; booleans and
// masks in floating point, which become bits; many words of zero, as ReLU leaves them, which become a bit each.
//
// Left out: LZ4. In three trainings it made at most 3 % of the other blocks smaller, and none of those was read back
// (bench/results/2026-11-26_compressed-step.md).
//
// [Note: how it is chosen]  One pass copies the block and counts. The size of bits and of words without the zeros is known
// from that, and the smallest form is taken.
//
// A race detector does not see what pack() reads, rightly: a write that cancels an eviction races with it by design. All
// decisions are about the copy, which nobody changes. Async-signal-safe; nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "words.hpp"

namespace ebbtide {

class Codec {
 public:
  static constexpr std::size_t kBlock = std::size_t{64} << 10;  // the most at a time; blocks are of whole small pages
  // What takes more than this share of its size is not worth the time.
  static constexpr std::uint64_t most_of(std::uint64_t bytes) { return bytes / 4 * 3; }

  enum class Form : std::uint8_t { None, Zeros, Bits, Two32, Two16, Words32, Words16, Plain };
  struct Packed {
    Form form = Form::None;
    std::uint32_t bytes = 0;
  };

  // Tests name other ways of packing words.
  explicit Codec(Words words32 = words_of_processor<std::uint32_t>(), Words words16 = words_of_processor<std::uint16_t>())
      : words32_(words32), words16_(words16) {}

  // Into `to`, which has room for `bytes` and is a multiple of 8. Plain where it does not shrink. `copy` has room for a block.
  Packed pack(const void* from, std::size_t bytes, char* to, char* copy) const;
  // The `bytes` again; false: this is not what was packed. Of what is damaged it may look as far
  // as kBlock beyond the end.
  bool unpack(Packed packed, const char* from, void* to, std::size_t bytes) const;

 private:
  const Words words32_, words16_;
};

}  // namespace ebbtide
