// [Note: stretches]  A stretch is what runs between two events that the arena is told of: an operator begins or ends, a
// storage is made or freed, somebody asks for an address. Code that touches storages unannounced (a compiled kernel, an
// operator's hidden operands) faults them in one by one, and each may push out another that the same loop needs: without
// a rule it would go on for ever. So where a block has to come back for the third time within one stretch, what the
// stretch has touched is kept until it ends, over budget where it does not fit, and its bytes are remembered as a need.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "block.hpp"

namespace ebbtide {

// There are two at a time: that of the step's thread, and that of all others, whose events end theirs alone. Outside of steps all
// threads are one.
class Stretch {
 public:
  enum Who : std::size_t { Everybody, OtherThreads };

  bool thrashes() const { return bytes_that_thrash(Everybody) > 0; }
  // Whether a loop would fault it back in at once.
  bool keeps(const Block& b) const {
    return std::ranges::any_of(ones_, [&](const One& one) { return one.thrashes && b.touched_in == one.number; });
  }
  // Of what was touched by those whose stretch this one's events end; 0 where none thrashes.
  std::uint64_t bytes_that_thrash(Who who) const {
    std::uint64_t bytes = 0;
    for (std::size_t i = who; i < ones_.size(); ++i) bytes = std::max(bytes, ones_[i].thrashes ? ones_[i].bytes : 0);
    return bytes;
  }

  void next(Who who) {
    for (std::size_t i = who; i < ones_.size(); ++i) ones_[i] = {.number = ++last_};
  }
  void count_return(Block& b, Who who) {  // a fault has to bring it back
    One& one = ones_[who];
    if (b.touched_in != one.number) {
      b.touched_in = one.number;
      b.returns = 0;
      one.bytes += b.paged_bytes;
    } else if (++b.returns == kMostReturns) {
      one.thrashes = true;
    }
  }

 private:
  static constexpr std::uint32_t kMostReturns = 3;
  struct One {
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;
    bool thrashes = false;
  };
  std::uint64_t last_ = 2;
  std::array<One, 2> ones_{One{.number = 1}, One{.number = 2}};
};

}  // namespace ebbtide
