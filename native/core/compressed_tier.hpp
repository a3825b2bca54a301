// A tier whose bytes lie packed in memory: it takes what training leaves there anyway in so little of it that neither a disk
// nor its wear is needed. What does not shrink it refuses, and a slower tier takes it.
//
// [Note: packed chunks]  A chunk is packed block by block (64 KiB) into a run of pages of the pool, and a table has, for each
// block, its form, its size and where it lies. The pool is address space, several times the capacity: a chunk takes a run
// that would hold it unpacked and gives back what is left of it. So nothing is moved when its size is known, and scattered
// free runs cost addresses, not memory. Bytes count by pages, as the kernel counts them.
//
// A released run's pages go back to the kernel at once. The process's budget counts resident memory, so what stayed here for
// nobody would be missing to the arena; and a forked child that shares the old page costs no copy of it. The price is a fault
// for each page that is written: more than half the time of writing words without zeros (docs/arena.md).
//
// [Note: packing's threads]  The table's entries of a chunk belong to whoever writes it, and change hands by the arena's
// mutex, like the chunk. Free runs are behind a lock that spins, under which nothing waits. Work areas are taken from a few,
// by a flag each. The lock and the flags stand in memory that a forked child has zeroed: whoever held one then is not there.
// A child reads, which takes no lock; it does not write or release.
//
// [Note: a sample]  What contents would take here is told by one block of every sixteen, at places that differ from one
// sixteen to the next, since rows of a tensor may begin alike. A chunk counts as write() counts it, by pages, and is refused
// like it. What is not sampled may be otherwise: then write() refuses it, and it goes past this tier.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "codec.hpp"
#include "free_runs.hpp"
#include "system.hpp"
#include "tier.hpp"

namespace ebbtide {

class CompressedTier final : public PackingTier {
 public:
  // Throws ArenaError for a capacity that is none.
  explicit CompressedTier(std::uint64_t capacity);

  // ENOSPC where it would not fit if it shrank as what came before did.
  int reserve(const Extent& extent) override;
  void release(const Extent& extent) override;
  Space space() const override { return {used_, capacity_}; }
  int write(const Extent& chunk, const void* from) override;  // EFBIG: it does not shrink; ENOSPC: it is full
  int read(const Extent& part, iovec* parts, int count) const override;
  std::uint64_t packed_peak() const override { return peak_; }
  std::optional<std::uint64_t> packed_bytes(const void* from, std::uint64_t bytes) const override;
  Failure explain(int error) const override;

 private:
  // Where a block lies packed; of none, all is zero.
  struct Entry {
    std::uint64_t form : 4;
    std::uint64_t pages : 5;   // of the block, unpacked
    std::uint64_t bytes : 17;  // packed
    std::uint64_t at : 38;     // in the pool, in units of 8 bytes
    Codec::Packed packed() const { return {static_cast<Codec::Form>(form), static_cast<std::uint32_t>(bytes)}; }
  };
  static_assert(sizeof(Entry) == 8);
  struct Flags;
  class Area;
  class Spin;

  Entry& entry(unsigned region, std::uint64_t slot) const { return reinterpret_cast<Entry*>(table_[region].begin())[slot]; }
  Run take_run(std::uint32_t pages);
  void give_run(Run run, std::uint32_t touched);
  int pack(const Extent& chunk, const char* from, Run run, std::uint64_t& bytes);
  bool claim(std::uint64_t bytes);  // whether the capacity has them
  void forget(const Extent& chunk);
  void count_ratio(std::uint64_t from, std::uint64_t to);
  bool unpack(const Entry& entry, void* to) const;
  int read_part(const Entry& entry, std::uint64_t from, std::uint64_t bytes, iovec*& parts, int& count) const;

  const Codec codec_;
  const std::uint64_t capacity_;
  const Reservation pool_;
  const std::array<Reservation, kRegions> table_;  // by region, and what a block may begin at
  const Reservation flags_;
  const Reservation areas_;
  FreeRuns free_;
  std::atomic<std::uint64_t> used_{0}, peak_{0};
  std::atomic<std::uint64_t> seen_{0}, kept_{0};  // bytes written, and packed: how well contents shrink lately
};

}  // namespace ebbtide
