// The slowest tier: spill files. Page p of a region lies at page p of the region's file, so that there is nothing to look
// up, and an extent's space is kept once it was reserved.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "spill_file.hpp"
#include "tier.hpp"

namespace ebbtide {

class FileTier final : public Tier {
 public:
  explicit FileTier(const std::vector<std::string>& directories);  // throws ArenaError

  int reserve(const Extent& extent) override;
  int reserve_ahead(const Extent& extent) override { return reserve(extent); }
  void release(const Extent&) override {}
  std::uint64_t used() const override { return files_[0].reserved() + files_[1].reserved(); }
  std::uint64_t capacity() const override { return 0; }
  int write(const Extent& chunk, const void* from) const override;
  int read(const Extent& chunk, iovec* parts, int count) const override;
  const char* name() const override { return "the spill directory"; }
  const char* where() const override { return names_[files_[failed_].failed()].c_str(); }
  const char* cure(int error) const override { return cure_of_spill(error); }

 private:
  int note(unsigned region, int error) const {
    if (error != 0) failed_ = region;
    return error;
  }

  std::array<SpillFile, kRegions> files_;
  std::vector<std::string> names_;  // of the directories
  mutable std::atomic<unsigned> failed_{0};
};

}  // namespace ebbtide
