#include "page_pool.hpp"

#include <cerrno>

#include "types.hpp"

namespace ebbtide {

PagePool::PagePool(std::uint32_t slots)
    : space_(std::size_t{slots} * kHugePage, kHugePage, PROT_READ | PROT_WRITE),
      warm_list_(slots * sizeof(Slot), kSmallPage, PROT_READ | PROT_WRITE),
      vacant_list_(slots * sizeof(Slot), kSmallPage, PROT_READ | PROT_WRITE),
      warm_slots_(reinterpret_cast<Slot*>(warm_list_.begin())),
      vacant_slots_(reinterpret_cast<Slot*>(vacant_list_.begin())),
      slots_(slots) {
  madvise(space_.begin(), space_.size(), MADV_HUGEPAGE);
  set_inherited(space_.begin(), space_.size(), false);
}

char* PagePool::address(Slot slot) const { return space_.begin() + std::size_t{slot} * kHugePage; }

Slot PagePool::pop_vacant() {
  if (vacant_ > 0) return vacant_slots_[--vacant_];
  if (fresh_ == slots_) fatal("page pool exhausted", EOVERFLOW);
  return fresh_++;
}

Slot PagePool::take() { return warm_ > 0 ? warm_slots_[--warm_] : pop_vacant(); }

void PagePool::give(Slot slot, bool has_page) {
  if (has_page) {
    warm_slots_[warm_++] = slot;
  } else {
    vacant_slots_[vacant_++] = slot;
  }
}

void PagePool::absorb(char* page) {
  Slot slot = pop_vacant();
  must_move_pages(page, address(slot), kHugePage);
  must_protect(address(slot), kHugePage, PROT_READ | PROT_WRITE);
  give(slot, true);
}

void PagePool::release(std::uint32_t pages) {
  for (; pages > 0 && warm_ > 0; --pages) {
    Slot slot = warm_slots_[--warm_];
    discard_pages(address(slot), kHugePage);
    give(slot, false);
  }
}

}  // namespace ebbtide
