// The slower tiers of an arena by rank, and the checksums of what lies in them.
//
// Checksums stand in memory, so a write that was lost or went astray shows. What one was taken of may be written to
// meanwhile: that cancels the transfer, and the next one writes, and takes the checksum of, all of it.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

#include "checksum.hpp"
#include "system.hpp"
#include "tier.hpp"
#include "types.hpp"

namespace ebbtide {

inline constexpr int kMostParts = 64;  // of one read, in memory
// So often is read what cannot be read, or comes back with another checksum, before that is an error.
inline constexpr int kReadTries = 3;

class Tiers {
 public:
  using List = std::vector<std::unique_ptr<Tier>>;  // the fastest first

  Tiers(List slower, std::array<std::size_t, kRegions> region_bytes);  // throws ArenaError for none, or too many

  Rank last() const { return static_cast<Rank>(tiers_.size()); }
  Tier& operator[](Rank rank) { return *tiers_[rank - 1u]; }
  const Tier& operator[](Rank rank) const { return *tiers_[rank - 1u]; }
  // What a tier is besides; null: it is not.
  InPlaceTier* in_place(Rank rank) const { return in_place_[rank]; }
  const PackingTier* packing(Rank rank) const { return packing_[rank]; }
  const PackingTier* fastest_packing() const;  // null: none packs
  // What the tiers that are used in place take, whatever the contents are. 0: there is no such tier.
  std::uint64_t in_place_bytes() const;

  // --- under the arena's mutex
  // The fastest tier of ranks [from, to) that has space for it, which is reserved then; kFast: none has. Of those that are
  // used in place and those that are not, the ones that will not do are passed over.
  Rank reserve(const Extent& extent, Rank from, Rank to, bool in_place, bool others = true);
  void release(const Extent& extent, RankSet ranks);
  // The last resort has failed: nothing slower takes it.
  void note_failure(Rank rank, int error);
  std::uint64_t failures() const { return failures_; }
  const Tier& failed() const { return (*this)[failed_]; }
  int error() const { return error_; }

  // --- without it: a chunk whole, or an errno; EBADMSG: other bytes came back than were written
  int write(Rank rank, const Extent& chunk, const void* from);
  // `next(at, parts)` says where the bytes from `at` on go, in at most kMostParts parts, and how many parts those are.
  template <typename Next>
  int read(Rank rank, const Extent& chunk, Next next);
  int read_into(Rank rank, const Extent& chunk, void* to);
  // Pages of a block, from one memory to another: 0 or an errno [Note: in place].
  int migrate(Rank source, Rank target, void* pages, std::size_t bytes);

  void set_checksum(bool on) { checksum_ = on; }
  // What a chunk was written with; 0: without one.
  std::uint32_t written_checksum(Rank rank, const Extent& chunk) const { return checksum(rank, chunk); }
  void hush() { other_bytes_ = true; }  // in a forked child, who cannot tell a changed file from a bad one
  std::uint64_t written(Rank rank) const { return written_[rank]; }  // bytes so far
  std::uint64_t read_bytes(Rank rank) const { return read_[rank]; }

 private:
  std::uint32_t& checksum(Rank rank, const Extent& chunk) const;
  int compare(Rank rank, const Checksum& sum, std::uint32_t expected);

  List tiers_;
  std::array<InPlaceTier*, kMostTiers> in_place_{};  // by rank, like the next
  std::array<const PackingTier*, kMostTiers> packing_{};
  std::vector<std::unique_ptr<Reservation>> checksums_;  // by rank and region, of the chunk that begins at a page
  std::atomic<bool> checksum_ = true;
  std::atomic<bool> other_bytes_ = false;  // they differed once, and that was said
  std::array<std::atomic<std::uint64_t>, kMostTiers> written_{}, read_{};
  std::uint64_t failures_ = 0;
  Rank failed_ = kFast;
  int error_ = 0;
};

template <typename Next>
int Tiers::read(Rank rank, const Extent& chunk, Next next) {
  std::uint32_t expected = checksum_ ? checksum(rank, chunk) : 0;
  Checksum sum;
  for (std::uint64_t at = 0; at < chunk.bytes;) {
    iovec parts[kMostParts], used_up[kMostParts];
    int count = next(at, parts);
    std::uint64_t bytes = 0;
    for (int i = 0; i < count; ++i) used_up[i] = parts[i], bytes += parts[i].iov_len;
    if (int error = (*this)[rank].read({chunk.region, chunk.begin + at, bytes}, used_up, count); error != 0) return error;
    for (int i = 0; i < count && expected != 0; ++i) sum.add(parts[i].iov_base, parts[i].iov_len);
    at += bytes;
  }
  read_[rank] += chunk.bytes;
  return expected == 0 ? 0 : compare(rank, sum, expected);
}

}  // namespace ebbtide
