#include "address_space.hpp"

#include <algorithm>
#include <iterator>

namespace ebbtide {

AddressSpace::AddressSpace(std::uint64_t pages) { insert(0, pages); }

std::uint64_t AddressSpace::take(std::uint64_t pages) {
  auto fit = by_length_.lower_bound({pages, 0});
  if (fit == by_length_.end()) return kNone;
  auto [length, first] = *fit;
  erase(by_place_.find(first));
  if (length > pages) insert(first + pages, length - pages);
  high_water_ = std::max(high_water_, first + pages);
  return first;
}

void AddressSpace::give(std::uint64_t first, std::uint64_t pages) {
  auto next = by_place_.lower_bound(first);
  if (next != by_place_.end() && first + pages == next->first) {
    pages += next->second;
    auto merged = next++;
    erase(merged);
  }
  if (next != by_place_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == first) {
      first = before->first;
      pages += before->second;
      erase(before);
    }
  }
  insert(first, pages);
}

void AddressSpace::insert(std::uint64_t first, std::uint64_t pages) {
  by_place_.emplace(first, pages);
  by_length_.emplace(pages, first);
}

void AddressSpace::erase(std::map<std::uint64_t, std::uint64_t>::iterator range) {
  by_length_.erase({range->second, range->first});
  by_place_.erase(range);
}

}  // namespace ebbtide
