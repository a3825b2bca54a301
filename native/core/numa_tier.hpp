// A slower tier in the memory of another NUMA node, such as a CPU-less one (CXL, HBM, persistent memory), which is used in
// place [Note: in place]. Only bytes are counted here; the pages are the arena's own, at its addresses.
//
// Where the node is short of memory, pages that came go back, and for a second nobody asks again: the next tier takes over.
#pragma once

#include <atomic>
#include <string>

#include "numa.hpp"
#include "tier.hpp"

namespace ebbtide {

class NumaTier final : public InPlaceTier {
 public:
  NumaTier(unsigned node, std::uint64_t capacity);  // throws ArenaError

  int reserve(const Extent& extent) override;
  void release(const Extent& extent) override;
  Space space() const override { return {used_, capacity_}; }
  int take(void* pages, std::size_t bytes) override;
  int give_back(void* pages, std::size_t bytes) override;
  Failure explain(int error) const override;

 private:
  const unsigned node_;
  const unsigned fast_node_;
  const std::uint64_t capacity_;
  const std::string name_;
  std::atomic<std::uint64_t> used_{0};           // read without the mutex too
  std::atomic<std::int64_t> short_until_ns_{0};  // the node had too little
};

}  // namespace ebbtide
