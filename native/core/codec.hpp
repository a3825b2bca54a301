// Packs a block of bytes into fewer, and back. What it looks for is what training's storages hold: nothing but zeros;
// booleans, and masks in floating point, which become bits; many words of zero, as ReLU leaves them, which become a bit each; and whatever LZ4 finds.
//
// [Note: liblz4]  LZ4 is the system's library, opened when the first codec is made, with the three functions declared here
// whose ABI has stood since 2015. So building Ebbtide needs no header and no package, and a run that asks for no
// compressed tier needs no library.
//
// [Note: how it is chosen]  One pass copies the block and counts, and the size of bits and of words without the zeros is
// known from that. If either is small enough, LZ4 is not tried, nor where all words
// are zero or one other value: on half zeros it is ten times slower and packs worse.
//
// A race detector does not see what pack() reads, rightly: a write that cancels an eviction races with it by design. All
// decisions are about the copy, which nobody changes. Async-signal-safe once it is made; nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "words.hpp"

namespace ebbtide {

struct Lz4 {
  int (*compress_fast)(void* state, const char* from, char* to, int bytes, int room, int acceleration);
  int (*decompress)(const char* from, char* to, int bytes, int room);
  int (*size_of_state)();

  static Lz4 open(const char* library = "liblz4.so.1");  // throws ArenaError that says what to install
};

class Codec {
 public:
  static constexpr std::size_t kBlock = std::size_t{64} << 10;  // the most at a time; blocks are of whole small pages
  static constexpr std::size_t kScratch = 2 * kBlock;  // what pack() works in
  // What takes more than this share of its size is not worth the time.
  static constexpr std::uint64_t most_of(std::uint64_t bytes) { return bytes / 4 * 3; }

  enum class Form : std::uint8_t { None, Zeros, Bits, Two32, Two16, Words32, Words16, Lz4, Plain };
  struct Packed {
    Form form = Form::None;
    std::uint32_t bytes = 0;
  };

  // Throws ArenaError. Tests name other ways of packing words.
  explicit Codec(Words words32 = words_of_processor<std::uint32_t>(), Words words16 = words_of_processor<std::uint16_t>());

  // Into `to`, which has room for `bytes` and is a multiple of 8. Plain where it does not shrink.
  Packed pack(const void* from, std::size_t bytes, char* to, char* scratch) const;
  // The `bytes` again; false: this is not what was packed. Of what is damaged it may look as far
  // as kBlock beyond the end.
  bool unpack(Packed packed, const char* from, void* to, std::size_t bytes) const;

 private:
  const Words words32_, words16_;
  const Lz4 lz4_ = Lz4::open();
};

}  // namespace ebbtide
