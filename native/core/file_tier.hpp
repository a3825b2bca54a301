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
  // Throws ArenaError.
  explicit FileTier(const std::vector<std::string>& directories) : files_{SpillFile(directories), SpillFile(directories)} {}

  int reserve(const Extent& extent) override;
  void release(const Extent&) override {}
  Space space() const override { return {files_[0].reserved() + files_[1].reserved(), 0}; }
  int write(const Extent& chunk, const void* from) override;
  int read(const Extent& chunk, iovec* parts, int count) const override;
  Failure explain(int error) const override;

 private:
  int note(unsigned region, int error) const {
    if (error != 0) failed_ = region;
    return error;
  }

  std::array<SpillFile, kRegions> files_;
  mutable std::atomic<unsigned> failed_{0};
};

}  // namespace ebbtide
