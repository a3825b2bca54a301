// [Note: pieces]  A large storage is several blocks, its pieces: they lie side by side, are made and freed together, and each
// moves on its own. So an operator on a slice needs the pieces that the slice lies in, and what is larger than fast memory
// can be used slice by slice. To the tape, the schedule and the decider each piece is a storage.
//
// A piece is born when it is first used. Until then it is Untouched: it has no pages, no contents, and is not live. Where an
// operator allocates, its pieces are born at once, since its kernel is about to fill them; so are those of whoever allocates
// without an operator (a file that is read, a compiled kernel): only empty() makes what is Untouched.
//
// An operator that goes through its operands in order (Work::InOrder, Work::InGroups) needs no more of them at once than its
// threads work on. Where they do not fit together, its pieces are not pinned: they come by faults, and those that were used
// longest ago leave.
#pragma once

#include <algorithm>
#include <cstdint>

#include "types.hpp"

namespace ebbtide {

inline constexpr std::size_t kPiece = 8 * kHugePage;
inline constexpr std::uint64_t kMostPieces = 16;  // unless they would be more than four times the least

// Of a storage: the bytes of each of its pieces, of which the last has the rest too. 0: it is one block. No piece is smaller
// than `least`, a multiple of a huge page; 0: nothing is in pieces.
constexpr std::uint64_t piece_bytes(std::uint64_t nbytes, std::uint64_t least) {
  if (least == 0 || nbytes < 2 * least) return 0;
  return std::clamp<std::uint64_t>(round_up(nbytes / kMostPieces, kHugePage), least, 4 * least);
}

// Bytes of a storage, and the part of what an operator moves of them that falls on one of its pieces.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = ~std::uint64_t{0};

  bool operator==(const ByteRange&) const = default;
  ByteRange within(std::uint64_t first, std::uint64_t after) const { return {std::max(begin, first), std::min(end, after)}; }
  ByteRange after(std::uint64_t offset) const { return *this == ByteRange{} ? *this : ByteRange{begin + offset, end + offset}; }
  std::uint64_t bytes() const { return end > begin ? end - begin : 0; }
  std::uint64_t share_of(std::uint64_t moved, std::uint64_t part) const {
    return static_cast<std::uint64_t>(static_cast<double>(moved) * (static_cast<double>(part) / static_cast<double>(bytes())));
  }
};

}  // namespace ebbtide
