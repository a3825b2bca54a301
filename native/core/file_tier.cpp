#include "file_tier.hpp"

namespace ebbtide {

FileTier::FileTier(const std::vector<std::string>& directories) : files_{SpillFile(directories), SpillFile(directories)} {
  for (const std::string& directory : directories) names_.push_back("the spill directory " + directory);
}

int FileTier::reserve(const Extent& extent) {
  return note(extent.region, files_[extent.region].reserve(extent.begin + extent.bytes));
}

int FileTier::write(const Extent& chunk, const void* from) const {
  iovec part{const_cast<void*>(from), chunk.bytes};
  return note(chunk.region, files_[chunk.region].write(&part, 1, chunk.begin));
}

int FileTier::read(const Extent& chunk, iovec* parts, int count) const {
  return note(chunk.region, files_[chunk.region].read(parts, count, chunk.begin));
}

}  // namespace ebbtide
