// Fast memory: a region of huge pages and one of small ones. Guarded as the regions are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "block.hpp"
#include "region.hpp"
#include "tier.hpp"
#include "types.hpp"

namespace ebbtide {

class FastMemory {
 public:
  FastMemory(std::size_t huge_bytes, std::size_t small_bytes) : huge_(huge_bytes, kHugePage), small_(small_bytes, kSmallPage) {}

  Region& region(const Shape& shape) { return shape.page == kHugePage ? huge_ : small_; }
  Region& region(const Block& b) { return region(b.shape); }
  const Region& region(const Block& b) const { return const_cast<FastMemory*>(this)->region(b); }
  Region& huge() { return huge_; }
  Region& small() { return small_; }

  bool contains(const void* p) const { return owning(p) != nullptr; }
  bool let_read(const void* p) { return const_cast<Region*>(owning(p))->let_read(p); }
  BlockId owner(const void* p) const {
    const Region* r = owning(p);
    return r != nullptr ? r->owner(p) : kNoBlock;
  }

  std::uint64_t cached_bytes() const { return huge_.cached_bytes() + small_.cached_bytes(); }
  // What a shape adds to reserved bytes: cached pages are reserved already.
  std::uint64_t fresh_bytes(const Shape& shape) { return region(shape).fresh_bytes(shape.pages); }
  // Cached pages that a claim of this shape has no use for go back to the system; returns their bytes.
  std::uint64_t release_cached(std::uint64_t bytes, const Shape& shape) {
    std::uint64_t released = 0;
    for (Region* r : {&huge_, &small_}) {
      if (released < bytes) released += r->release_cached(bytes - released, r == &region(shape) ? shape.pages : 0);
    }
    return released;
  }

  std::uint64_t areas() const { return huge_.areas() + small_.areas(); }
  std::uint64_t merge_areas() { return huge_.merge_areas() + small_.merge_areas(); }
  int areas_more_without(const Block& b) { return region(b).areas_more_without(b.place); }

  // What a slower tier knows this part of a block by.
  Extent extent(const Block& b, std::uint64_t begin, std::uint64_t bytes) const {
    return {b.shape.page == kHugePage ? 0u : 1u, b.place.first * b.shape.page + begin, bytes};
  }
  Extent extent(const Block& b) const { return extent(b, 0, moved_bytes(b)); }

 private:
  const Region* owning(const void* p) const {
    if (huge_.contains(p)) return &huge_;
    return small_.contains(p) ? &small_ : nullptr;
  }

  Region huge_;
  Region small_;
};

}  // namespace ebbtide
