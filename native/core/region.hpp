// A region of address space whose blocks lie on one grid, with the spill file that mirrors it: the block at page p of
// the region lies at page p of the file. One region is for blocks with a body of huge pages, one for smaller blocks.
//
// A fetch must fill pages that nobody can see yet. Huge pages come from the pool, so the region remembers which slot
// stands for which page; small pages are made by the read itself, at the block's place in a hidden twin of the region.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "address_space.hpp"
#include "page_pool.hpp"
#include "spill_file.hpp"
#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

class Region {
 public:
  Region(std::size_t bytes, std::size_t page, const std::vector<std::string>& spill_directories)
      : page_(page),
        space_(bytes, page, PROT_NONE),
        twin_(bytes, page, PROT_READ | PROT_WRITE),
        owners_(bytes / page * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE),
        slots_(page == kHugePage ? bytes / page * sizeof(Slot) : kSmallPage, kSmallPage, PROT_READ | PROT_WRITE),
        ranges_(bytes / page),
        spill_(spill_directories) {
    if (page == kHugePage) madvise(space_.begin(), space_.size(), MADV_HUGEPAGE);
    set_inherited(space_.begin(), space_.size(), false);
    set_inherited(twin_.begin(), twin_.size(), false);
  }

  std::size_t page() const { return page_; }
  bool contains(const void* p) const { return space_.contains(p); }
  char* address(std::uint64_t page_index) const { return space_.begin() + page_index * page_; }
  char* twin(const char* address) const { return twin_.begin() + (address - space_.begin()); }
  Slot& slot(std::uint64_t page_index) const { return reinterpret_cast<Slot*>(slots_.begin())[page_index]; }
  AddressSpace& ranges() { return ranges_; }
  SpillFile& spill() { return spill_; }
  const SpillFile& spill() const { return spill_; }

  // Which block owns the page at `p`. Entries hold id + 1, so that untouched (zero) memory means nobody.
  BlockId owner(const void* p) const { return table()[page_of(p)] - 1; }
  void set_owner(std::uint64_t first, std::uint32_t pages, BlockId id) {
    for (std::uint32_t i = 0; i < pages; ++i) table()[first + i] = id + 1;
  }

 private:
  std::size_t page_of(const void* p) const {
    return static_cast<std::size_t>(static_cast<const char*>(p) - space_.begin()) / page_;
  }
  BlockId* table() const { return reinterpret_cast<BlockId*>(owners_.begin()); }

  std::size_t page_;
  Reservation space_;
  Reservation twin_;
  Reservation owners_;
  Reservation slots_;
  AddressSpace ranges_;
  SpillFile spill_;
};

}  // namespace ebbtide
