// A slower tier in the memory of another NUMA node, such as a CPU-less one (CXL, HBM, persistent memory). Bytes lie in a
// mirror of each region, at the same offset, and are copied there and back: the training's own pages stay its own.
//
// [Note: kept pages]  A step evicts to the same places as the one before it, so a released extent keeps its pages, and the
// next reserve() of it finds them. Pages are made by reserve(), in units of the region's page, and go back to the kernel
//   - as soon as reserved and kept pages together would be more than the capacity: kept ones elsewhere go, in turn
//   - on release, where a forked child has them too: written over they would be copied, which nobody accounts for
// So populated bytes, which count as the process's resident set, never exceed the capacity, and nothing is ever written to
// a page that is not there already: a write cannot run short. Where the node is short, kept pages go back too; if that is
// not enough reserve() is an ENOMEM, for the next tier to take it ([Note: no bind] says why that is no death), and new pages
// are asked for again after a second.
//
// A forked child has no pages of it but those that it is given: the mirror is wiped on fork, like the arena's memory.
#pragma once

#include <array>
#include <atomic>
#include <string>

#include "numa.hpp"
#include "system.hpp"
#include "tier.hpp"
#include "types.hpp"

namespace ebbtide {

class NumaTier final : public Tier {
 public:
  // Throws ArenaError. The regions are the arena's.
  NumaTier(unsigned node, std::uint64_t capacity, std::array<std::size_t, kRegions> region_bytes);
  ~NumaTier() override;  // its pages go back to the kernel, its address space does not

  int reserve(const Extent& extent) override;
  void release(const Extent& extent) override;
  void inherit(const Extent& extent, bool inherited) override;
  std::uint64_t used() const override { return used_; }
  std::uint64_t outside() const override { return populated_; }
  std::uint64_t capacity() const override { return capacity_; }
  std::uint64_t sure_bytes() const override { return capacity_; }
  int write(const Extent& chunk, const void* from) const override;
  int read(const Extent& chunk, iovec* parts, int count) const override;
  const char* name() const override { return name_.c_str(); }
  const char* where() const override { return name_.c_str(); }
  const char* cure(int error) const override;

  std::uint64_t populated() const { return populated_; }  // bytes of the process's resident set that are its
  Whereabouts whereabouts() const;                        // of what is reserved, as the kernel says

 private:
  // Given: to the child of this fork, or of one under way. Shared: a child may have it still.
  enum class Page : std::uint8_t { None, Kept, Reserved, Shared, Given };
  struct Mirror {
    Mirror(std::size_t bytes, std::size_t page, unsigned node);
    Reservation memory;
    Reservation table;  // a Page for each page
    std::size_t page;
    std::size_t end = 0;   // one past the last that ever had a page
    std::size_t hand = 0;  // where kept pages go back to the kernel next
    Page* pages() const { return reinterpret_cast<Page*>(table.begin()); }
    char* at(std::size_t index) const { return memory.begin() + index * page; }
  };
  struct Span {
    std::size_t first, end;
  };
  static Span span(const Mirror& mirror, const Extent& extent);
  int populate(Mirror& mirror, Span span);
  bool give_back(std::uint64_t bytes);
  void drop(Mirror& mirror, Span span);
  bool is_child() const { return *parent_.begin() == 0; }

  const unsigned node_;
  const std::uint64_t capacity_;
  const std::string name_;
  Mirror mirrors_[kRegions];
  Reservation parent_;  // a word that is 1, and 0 in a forked child
  // Read without the mutex too.
  std::atomic<std::uint64_t> used_{0};
  std::atomic<std::uint64_t> populated_{0};
  std::int64_t short_until_ns_ = 0;  // the node had too little
};

}  // namespace ebbtide
