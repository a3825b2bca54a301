#include "spill_file.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

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

constexpr SpillFile::Calls system_calls{write_parts, read_parts, ::fallocate};

}  // namespace

std::atomic<const SpillFile::Calls*> SpillFile::calls{&system_calls};

SpillFile::SpillFile(const std::string& directory) {
  constexpr int flags = O_TMPFILE | O_RDWR | O_CLOEXEC;
  fd_ = open(directory.c_str(), flags | O_DIRECT, 0600);
  if (fd_ < 0 && errno == EINVAL) {
    direct_ = false;
    fd_ = open(directory.c_str(), flags, 0600);
  }
  if (fd_ < 0) {
    throw ArenaError("cannot make a spill file in " + directory + ": " + std::strerror(errno) +
                     "; choose a writable directory on a local disk (--spill DIR or EBBTIDE_SPILL)");
  }
  if (!direct_) say("the spill directory has no O_DIRECT: moves go through the page cache and are slower");
}

SpillFile::~SpillFile() { close(fd_); }

int SpillFile::reserve(std::uint64_t bytes) {
  if (bytes <= reserved_) return 0;
  std::uint64_t target = round_up(bytes, kReserveStep);
  int error = 0;
  for (std::uint64_t end : {target, static_cast<std::uint64_t>(round_up(bytes, kHugePage))}) {
    do {
      error = calls.load()->fallocate(fd_, 0, static_cast<off_t>(reserved_), static_cast<off_t>(end - reserved_)) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP) error = ftruncate(fd_, static_cast<off_t>(end)) == 0 ? 0 : errno;
    if (error == 0) {
      reserved_ = end;
      return 0;
    }
  }
  return error;
}

int SpillFile::transfer(iovec* parts, int count, std::uint64_t offset, bool out) const {
  while (count > 0) {
    ssize_t n = out ? calls.load()->pwritev(fd_, parts, count, static_cast<off_t>(offset))
                    : calls.load()->preadv(fd_, parts, count, static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (n == 0) return EIO;
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
