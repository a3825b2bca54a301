// [Note: stretches]  A stretch is what runs between two events that the arena is told of: an operator begins or ends, a
// storage is made or freed, somebody asks for an address. Code that touches storages unannounced (a compiled kernel, an
// operator's hidden operands) faults them in one by one, and each may push out another that the same loop needs: without
// a rule it would go on for ever. So where a block has to come back for the third time within one stretch, what the
// stretch has touched is kept until it ends, over budget where it does not fit, and its bytes are remembered as a need.
#pragma once

#include <cstdint>

#include "block.hpp"

namespace ebbtide {

class Stretch {
 public:
  bool thrashes() const { return thrashes_; }
  std::uint64_t bytes() const { return bytes_; }  // of what it has touched
  // Whether a loop would fault it back in at once.
  bool keeps(const Block& b) const { return thrashes_ && b.touched_in == number_; }

  void next() {
    ++number_;
    bytes_ = 0;
    thrashes_ = false;
  }
  void count_return(Block& b) {  // a fault has to bring it back
    if (b.touched_in != number_) {
      b.touched_in = number_;
      b.returns = 0;
      bytes_ += b.paged_bytes;
    } else if (++b.returns == kMostReturns) {
      thrashes_ = true;
    }
  }

 private:
  static constexpr std::uint32_t kMostReturns = 3;
  std::uint64_t number_ = 1;
  std::uint64_t bytes_ = 0;
  bool thrashes_ = false;
};

}  // namespace ebbtide
