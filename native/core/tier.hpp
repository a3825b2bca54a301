// A slower tier: where contents lie that fast memory does not have, or has besides.
//
// [Note: a tier]  A new one is a class like this in a file of its own, and a row where the arena's tiers are made. What
// it is asked for, in this order: reserve() an extent, write() its chunks once, read() them any number of times,
// release() the extent; or release() without the rest. An extent's chunks always begin at the same places, those of
// different extents never overlap while both are reserved, and nothing is read that was not written whole. Chunks of one
// extent may be written, or read, by several threads at once. A forked child reads what was there when it was forked:
// memory that it inherits, or a file, in which nothing is written over before the child can know [Note: children].
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>

namespace ebbtide {

// Bytes [begin, begin + bytes) of the region of huge pages (0) or of small ones (1).
struct Extent {
  unsigned region = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

inline constexpr unsigned kRegions = 2;

// Callers of what is not const hold the arena's mutex. Nothing here may allocate or free, or wait for a lock under which
// somebody does: faults are served by these calls.
class Tier {
 public:
  virtual ~Tier() = default;

  virtual int reserve(const Extent& extent) = 0;       // 0, or the errno of why there is no space: it is not asked for again
  // Of the slowest: space for all that will lie in this, so that it is not short when something has to leave.
  virtual int reserve_ahead(const Extent&) { return 0; }
  virtual void release(const Extent& extent) = 0;      // its contents are not needed any more
  // Before a fork, and after it in the parent: whether the child reads what lies there. A file's it always does.
  virtual void inherit(const Extent&, bool) {}
  virtual std::uint64_t used() const = 0;              // bytes
  // Of this process's resident memory, what lies here and is not fast memory: a budget does not count it.
  virtual std::uint64_t outside() const { return 0; }
  virtual std::uint64_t capacity() const = 0;          // 0: only reserve() knows

  // Whether contents take another space here than their size; and what these would take, judged by a sample of them. None:
  // they would be refused. Without the mutex, like write() and read().
  virtual bool packs() const { return false; }
  virtual std::uint64_t packed_peak() const { return 0; }  // the most bytes that ever lay there
  virtual std::optional<std::uint64_t> packed_bytes(const void*, std::uint64_t) const { return std::nullopt; }

  // Without the mutex: a chunk whole, or an errno.
  virtual int write(const Extent& chunk, const void* from) const = 0;
  virtual int read(const Extent& chunk, iovec* parts, int count) const = 0;  // uses up the parts

  virtual const char* name() const = 0;   // in a sentence: "the spill directory"
  virtual const char* where() const = 0;  // likewise, of the last call that failed: "the spill directory /var/tmp"
  virtual const char* cure(int error) const = 0;
};

}  // namespace ebbtide
