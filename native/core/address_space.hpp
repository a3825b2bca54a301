// Hands out ranges of page numbers: best fit, lowest address, neighbours merged on return.
// A range's place in its region is also its place in the spill file, so keeping the space compact keeps the file small.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace ebbtide {

class AddressSpace {
 public:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  explicit AddressSpace(std::uint64_t pages);

  std::uint64_t take(std::uint64_t pages);               // first page, or kNone when no range is long enough
  void give(std::uint64_t first, std::uint64_t pages);   // callers MUST give back exactly what they took
  std::uint64_t high_water() const { return high_water_; }  // one past the highest page ever taken

 private:
  void insert(std::uint64_t first, std::uint64_t pages);
  void erase(std::map<std::uint64_t, std::uint64_t>::iterator range);

  std::map<std::uint64_t, std::uint64_t> by_place_;             // first page -> length
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_length_;  // (length, first page)
  std::uint64_t high_water_ = 0;
};

}  // namespace ebbtide
