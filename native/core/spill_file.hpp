// One unlinked file that holds what left fast memory: O_TMPFILE, mode 0600, O_DIRECT where the filesystem has it.
// Nothing is left behind whatever way the process ends. Space is reserved before it is needed, because a disk that
// fills up in the middle of an eviction leaves no way out.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ebbtide {

class SpillFile {
 public:
  // Throws ArenaError that says why `directory` cannot be used.
  explicit SpillFile(const std::string& directory);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Makes sure that [0, bytes) has space. 0, or the errno of the failure. Grows in large steps.
  int reserve(std::uint64_t bytes);
  std::uint64_t reserved() const { return reserved_; }
  bool direct() const { return direct_; }

  // The whole range or an errno; a short transfer is continued, end of file is EIO. Async-signal-safe.
  int write(iovec* parts, int count, std::uint64_t offset) const { return transfer(parts, count, offset, true); }
  int read(iovec* parts, int count, std::uint64_t offset) const { return transfer(parts, count, offset, false); }

  // Tests put their own system call here (disk full, read error, short write).
  struct Calls {
    ssize_t (*pwritev)(int, const iovec*, int, off_t);
    ssize_t (*preadv)(int, const iovec*, int, off_t);
    int (*fallocate)(int, int, off_t, off_t);
  };
  static std::atomic<const Calls*> calls;

 private:
  int transfer(iovec* parts, int count, std::uint64_t offset, bool out) const;

  int fd_ = -1;
  bool direct_ = true;
  std::uint64_t reserved_ = 0;
};

}  // namespace ebbtide
