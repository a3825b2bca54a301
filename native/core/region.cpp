#include "region.hpp"

#include <cerrno>

namespace ebbtide {

Region::Region(char* begin, std::size_t bytes, std::size_t page)
    : vacant_(static_cast<std::uint32_t>(bytes / page)),
      begin_(begin),
      bytes_(bytes),
      page_(page),
      owners_(bytes / page * sizeof(BlockId), kSmallPage, PROT_READ | PROT_WRITE) {
  vacant_.give({0, static_cast<std::uint32_t>(bytes / page)});
}

Run Region::take_vacant(std::uint32_t pages) {
  if (!vacant_.fits(pages)) fatal("moving pages: the arena's address space is used up", EOVERFLOW);
  Run run = vacant_.take(pages);
  high_water_ = std::max<std::uint64_t>(high_water_, run.first + run.count);
  return run;
}

}  // namespace ebbtide
