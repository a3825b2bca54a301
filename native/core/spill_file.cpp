#include "spill_file.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

namespace {

constexpr std::uint64_t kReserveStep = std::uint64_t{256} << 20;

// The bare system calls: glibc's are cancellation points, which a signal handler must not pass through. (A race
// detector does not see these accesses either, rightly: a write that cancels an eviction races with it by design.)
ssize_t write_parts(int fd, const iovec* parts, int count, off_t offset) {
  return syscall(SYS_pwritev, fd, parts, count, offset, 0L);
}
ssize_t read_parts(int fd, const iovec* parts, int count, off_t offset) {
  return syscall(SYS_preadv, fd, parts, count, offset, 0L);
}

// Where the standard descriptors are closed, what is printed would go into the file.
int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
  close(fd);
  errno = error;
  return above;
}

// Without a name; overlayfs before Linux 6.1, NFS and others have no O_TMPFILE, and there it has a name for a moment.
int open_unnamed(const std::string& directory, int flags) {
  int fd = above_standard(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600));
  if (fd >= 0 || errno != EOPNOTSUPP) return fd;
  std::string name = directory + "/.ebbtide-XXXXXX";
  if ((fd = mkostemp(name.data(), O_CLOEXEC)) < 0) return fd;
  unlink(name.c_str());
  if ((fd = above_standard(fd)) < 0 || flags == 0 || fcntl(fd, F_SETFL, flags) == 0) return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

constexpr SpillFile::Calls system_calls{write_parts, read_parts, ::fallocate};

}  // namespace

std::atomic<const SpillFile::Calls*> SpillFile::calls{&system_calls};

SpillFile::SpillFile(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    const std::string name = "the spill directory " + directory;
    int fd = open_unnamed(directory, O_DIRECT);
    if (fd < 0 && errno == EINVAL) {
      fd = open_unnamed(directory, 0);
      if (fd >= 0) say((name + " has no O_DIRECT: moves go through the page cache and are slower").c_str());
    }
    if (fd < 0) {
      int error = errno;
      for (const File& file : files_) close(file.fd);
      throw ArenaError("cannot make a spill file in " + directory + ": " + std::strerror(error) +
                       "; choose a writable directory on a local disk (--spill DIR or EBBTIDE_SPILL)");
    }
    struct stat it;
    if (fstat(fd, &it) != 0) fatal("fstat", errno);
    void* mapping = mmap(nullptr, kSmallPage, PROT_NONE, MAP_SHARED, fd, 0);
    files_.push_back({name, fd, it.st_dev, it.st_ino, mapping});
  }
}

SpillFile::~SpillFile() {
  for (const File& file : files_) {
    if (file.is_open()) close(file.fd);
    if (file.mapping != MAP_FAILED) munmap(file.mapping, kSmallPage);
  }
}

bool SpillFile::File::is_open() const {
  struct stat it;
  return fstat(fd, &it) == 0 && it.st_dev == device && it.st_ino == inode;
}

const char* cure_of_spill(int error) {
  if (error == EBADMSG) return "the disk or its driver is at fault: name another directory by --spill";
  if (error == EBADF) return kClosedByScript;
  if (error == EIO) return "the disk fails: go on from a checkpoint with another directory (--spill DIR or EBBTIDE_SPILL)";
  if (error == EFBIG) {
    return "no file may grow that large: lift the limit on a file's size (RLIMIT_FSIZE, ulimit -f unlimited), or choose another "
           "directory (--spill DIR or EBBTIDE_SPILL)";
  }
  return "free space there or choose another (--spill DIR or EBBTIDE_SPILL)";
}

SpillFile::Place SpillFile::place(std::uint64_t offset) const {
  if (files_.size() == 1) return {0, offset, ~std::uint64_t{0}};
  std::uint64_t stripe = offset / kStripe, within = offset % kStripe;
  return {stripe % files_.size(), stripe / files_.size() * kStripe + within, kStripe - within};
}

std::uint64_t SpillFile::bytes_in(std::size_t file, std::uint64_t bytes) const {
  std::uint64_t row = files_.size() * kStripe, before = file * kStripe, rest = bytes % row;
  return bytes / row * kStripe + (rest > before ? std::min(rest - before, kStripe) : 0);
}

int SpillFile::reserve(std::uint64_t bytes) {
  if (bytes <= reserved_) return 0;
  int error = 0;
  for (std::uint64_t end : {round_up(bytes, kReserveStep), round_up(bytes, kHugePage)}) {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      error = reserve_in(files_[i], bytes_in(i, end));
      if (error == 0) continue;
      failed_ = i;
      break;
    }
    if (error == 0) {
      reserved_ = end;
      return 0;
    }
  }
  return error;
}

int SpillFile::reserve_in(File& file, std::uint64_t end) {
  if (end <= file.reserved) return 0;
  if (!file.is_open()) return EBADF;
  int error = 0;
  do {
    auto from = static_cast<off_t>(file.reserved), more = static_cast<off_t>(end - file.reserved);
    error = calls.load()->fallocate(file.fd, 0, from, more) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (!file.is_open()) return EBADF;
  // Ext4 keeps what it got before it ran out, which would be the last of the disk.
  if (error != 0 && error != EOPNOTSUPP && ftruncate(file.fd, static_cast<off_t>(file.reserved)) != 0) return errno;
  if (error == EOPNOTSUPP) error = ftruncate(file.fd, static_cast<off_t>(end)) == 0 ? 0 : errno;
  if (error == 0) file.reserved = end;
  return error;
}

int SpillFile::transfer(iovec* parts, int count, std::uint64_t offset, bool out) const {
  while (count > 0) {
    Place at = place(offset);
    if (!files_[at.file].is_open()) {
      failed_ = at.file;
      return EBADF;
    }
    // The parts that lie in this stripe, the last of them cut short for this call where the stripe ends within it.
    int here = 0;
    std::uint64_t bytes = 0;
    while (here < count && bytes < at.bytes) bytes += parts[here++].iov_len;
    std::size_t over = bytes > at.bytes ? bytes - at.bytes : 0;
    parts[here - 1].iov_len -= over;
    int fd = files_[at.file].fd;
    // Looked at again afterwards: once its number is another file's it stays so, so what was read is this file's.
    ssize_t n = out ? calls.load()->pwritev(fd, parts, here, static_cast<off_t>(at.offset))
                    : calls.load()->preadv(fd, parts, here, static_cast<off_t>(at.offset));
    int error = n < 0 ? errno : EIO;
    parts[here - 1].iov_len += over;
    if (!files_[at.file].is_open()) n = -1, error = EBADF;
    if (n < 0 && error == EINTR) continue;
    if (n <= 0) {
      failed_ = at.file;
      return error;
    }
    offset += static_cast<std::uint64_t>(n);
    std::size_t left = static_cast<std::size_t>(n);
    while (count > 0 && left >= parts->iov_len) {
      left -= parts->iov_len;
      ++parts;
      --count;
    }
    if (count > 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + left;
      parts->iov_len -= left;
    }
  }
  return 0;
}

}  // namespace ebbtide
