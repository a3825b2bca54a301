#include "file_tier.hpp"

#include <cerrno>

namespace ebbtide {

int FileTier::reserve(const Extent& extent) {
  return note(extent.region, files_[extent.region].reserve(extent.begin + extent.bytes));
}

int FileTier::write(const Extent& chunk, const void* from) {
  iovec part{const_cast<void*>(from), chunk.bytes};
  return note(chunk.region, files_[chunk.region].write(&part, 1, chunk.begin));
}

int FileTier::read(const Extent& chunk, iovec* parts, int count) const {
  return note(chunk.region, files_[chunk.region].read(parts, count, chunk.begin));
}

Failure FileTier::explain(int error) const {
  const char* where = error == EBADMSG ? "the spill directory" : files_[failed_].failed();
  return {where, cure_of_spill(error)};
}

}  // namespace ebbtide
