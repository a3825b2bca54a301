#include "data_files.hpp"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "system.hpp"

namespace ebbtide {

namespace {
struct Mapped {
  DataBytes bytes;
  bool is_program = false;
  std::string path;
};

// As archives of locales are: large, and hardly read.
bool is_of_the_system(const std::string& path) { return path.starts_with("/usr/"); }

// `device` is "fd:00", say. Where a file has gone, or has no path, that alone tells: block devices have major numbers.
bool lies_in_memory(const std::string& path, const std::string& device) {
  struct statfs at;
  if (statfs(path.c_str(), &at) != 0) return std::strtoul(device.c_str(), nullptr, 16) == 0;
  auto type = static_cast<unsigned long>(at.f_type);
  return type == TMPFS_MAGIC || type == HUGETLBFS_MAGIC || type == RAMFS_MAGIC;
}
}  // namespace

DataBytes data_bytes(bool resident) {
  std::ifstream maps(resident ? "/proc/self/smaps" : "/proc/self/maps");
  std::map<std::pair<std::string, unsigned long>, Mapped> files;  // by device and inode
  Mapped* mapped = nullptr;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0, inode = 0, kib = 0;
    char may[5] = {}, device[16] = {};
    int at_path = 0;
    int read = std::sscanf(line.c_str(), "%lx-%lx %4s %*x %15s %lu %n", &from, &to, may, device, &inode, &at_path);
    if (read == 5) {
      mapped = inode == 0 ? nullptr : &files[{device, inode}];
      if (mapped == nullptr) continue;
      mapped->bytes.mapped += to - from;
      mapped->is_program = mapped->is_program || may[2] == 'x';
      mapped->path = line.substr(static_cast<std::size_t>(at_path));
    } else if (mapped != nullptr && std::sscanf(line.c_str(), "Rss: %lu", &kib) == 1) {
      mapped->bytes.resident += kib << 10;
    }
  }
  DataBytes all;
  for (const auto& [place, file] : files) {
    if (file.is_program || is_of_the_system(file.path) || lies_in_memory(file.path, place.first)) continue;
    all.mapped += file.bytes.mapped;
    all.resident += file.bytes.resident;
  }
  return all;
}

// `shared` has pages of shared memory, too, which is no file's.
std::uint64_t DataFiles::bytes(std::uint64_t shared) const {
  if (mapped_ == 0 || shared <= programs_) return 0;
  std::uint64_t of_files = process_file_bytes();
  return std::min(mapped_, of_files - std::min(of_files, programs_));
}

}  // namespace ebbtide
