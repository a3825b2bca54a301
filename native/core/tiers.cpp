#include "tiers.hpp"

#include <algorithm>
#include <cstdio>

namespace ebbtide {

Tiers::Tiers(List slower, std::array<std::size_t, kRegions> region_bytes) : tiers_(std::move(slower)) {
  if (tiers_.empty() || tiers_.size() >= kMostTiers) throw ArenaError("an arena has one to seven slower tiers");
  for (Rank rank = 1; rank <= last(); ++rank) {
    in_place_[rank] = dynamic_cast<InPlaceTier*>(&(*this)[rank]);
    packing_[rank] = dynamic_cast<const PackingTier*>(&(*this)[rank]);
    for (unsigned r = 0; r < kRegions; ++r) {
      std::size_t bytes = region_bytes[r] / kRegionPage[r] * sizeof(std::uint32_t);
      checksums_.push_back(std::make_unique<Reservation>(bytes, kSmallPage, PROT_READ | PROT_WRITE));
    }
  }
}

const PackingTier* Tiers::fastest_packing() const {
  auto found = std::ranges::find_if(packing_, [](const PackingTier* tier) { return tier != nullptr; });
  return found != packing_.end() ? *found : nullptr;
}

std::uint64_t Tiers::in_place_bytes() const {
  std::uint64_t bytes = 0;
  for (const InPlaceTier* tier : in_place_) bytes += tier != nullptr ? tier->space().capacity : 0;
  return bytes;
}

Rank Tiers::reserve(const Extent& extent, Rank from, Rank to, bool in_place, bool others) {
  for (Rank rank = from; rank < to; ++rank) {
    if (!(in_place_[rank] != nullptr ? in_place : others)) continue;
    int error = (*this)[rank].reserve(extent);
    if (error == 0) return rank;
    if (rank == last()) note_failure(rank, error);
  }
  return kFast;
}

void Tiers::release(const Extent& extent, RankSet ranks) {
  for (Rank rank = 1; ranks >> rank != 0; ++rank) {
    if ((ranks & bit(rank)) != 0) (*this)[rank].release(extent);
  }
}

void Tiers::note_failure(Rank rank, int error) {
  failed_ = rank;
  error_ = error;
  ++failures_;
}

std::uint32_t& Tiers::checksum(Rank rank, const Extent& chunk) const {
  const Reservation& memory = *checksums_[(rank - 1u) * kRegions + chunk.region];
  return reinterpret_cast<std::uint32_t*>(memory.begin())[chunk.begin / kRegionPage[chunk.region]];
}

int Tiers::write(Rank rank, const Extent& chunk, const void* from) {
  Checksum sum;
  const bool checked = checksum_;  // once: it may be switched meanwhile
  if (checked) sum.add(from, chunk.bytes);
  checksum(rank, chunk) = checked ? sum.value() : 0;
  int error = (*this)[rank].write(chunk, from);
  if (error == 0) written_[rank] += chunk.bytes;
  return error;
}

int Tiers::read_into(Rank rank, const Extent& chunk, void* to) {
  return read(rank, chunk, [&](std::uint64_t at, iovec* parts) {
    parts[0] = {static_cast<char*>(to) + at, chunk.bytes - at};
    return 1;
  });
}

int Tiers::migrate(Rank source, Rank target, void* pages, std::size_t bytes) {
  int error = target != kFast ? in_place_[target]->take(pages, bytes) : in_place_[source]->give_back(pages, bytes);
  if (error != 0) return error;
  if (target != kFast) written_[target] += bytes;
  if (source != kFast) read_[source] += bytes;
  return 0;
}

int Tiers::compare(Rank rank, const Checksum& sum, std::uint32_t expected) {
  if (sum.value() == expected) return 0;
  if (!other_bytes_.exchange(true)) {
    char text[256];
    std::snprintf(text, sizeof text, "other bytes came back from %s than were written there; they are read again",
                  (*this)[rank].explain(EBADMSG).where);
    say(text);
  }
  return EBADMSG;
}

}  // namespace ebbtide
