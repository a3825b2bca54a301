// What holds that which was evicted from fast memory: an unlinked file in each spill directory (mode 0600, O_TMPFILE and O_DIRECT where
// the filesystem has them), addressed as one. Nothing is left behind whatever way the process ends. Space is reserved
// before it is needed, because a disk that fills up in the middle of an eviction leaves no way out.
//
// The process may close descriptors that it did not open (os.closerange), and its next file then has that number: so each use
// looks before and after whether the descriptor is still that of this file, and is EBADF if it is not, rather than bytes of
// another file. A write can still reach a file that another thread opens in between. A mapping keeps the file's inode, whose number would else be the next file's.
//
// [Note: stripes] Stripe s (bytes [s, s + 1) * kStripe) lies in file s mod n, as its stripe s / n: so consecutive chunks
// go to different disks, and each file is as long as the others but for one stripe.
#pragma once

#include <sys/stat.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ebbtide {

// What to do where a use of the spill file ended with this errno.
const char* cure_of_spill(int error);

class SpillFile {
 public:
  static constexpr std::uint64_t kStripe = std::uint64_t{4} << 20;  // as large as what the arena moves in one call

  // Throws ArenaError that says why one of `directories` (at least one) cannot be used.
  explicit SpillFile(const std::vector<std::string>& directories);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Makes sure that [0, bytes) has space. 0, or the errno of the failure. Grows in large steps. Callers MUST hold a lock.
  int reserve(std::uint64_t bytes);
  std::uint64_t reserved() const { return reserved_; }
  // Where the last call that returned an errno failed: "the spill directory /var/tmp".
  const char* failed() const { return files_[failed_].name.c_str(); }

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
  struct File {
    std::string name;
    int fd;
    dev_t device;
    ino_t inode;
    void* mapping;  // a page of it; MAP_FAILED where its filesystem has none
    std::uint64_t reserved = 0;
    bool is_open() const;  // its descriptor is still its own
  };
  // A byte's file, its place there, and how many from it on lie beside each other [Note: stripes].
  struct Place {
    std::size_t file;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  Place place(std::uint64_t offset) const;
  std::uint64_t bytes_in(std::size_t file, std::uint64_t bytes) const;  // its part of [0, bytes)
  int reserve_in(File& file, std::uint64_t end);
  int transfer(iovec* parts, int count, std::uint64_t offset, bool out) const;

  std::vector<File> files_;
  std::uint64_t reserved_ = 0;
  mutable std::atomic<std::size_t> failed_{0};
};

}  // namespace ebbtide
