// A slower tier: where contents lie that fast memory does not have, or has besides.
//
// [Note: a tier]  A new one is a class like this in a file of its own, and a row where the arena's tiers are made. What
// it is asked for, in this order: reserve() an extent, write() its chunks once, read() them any number of times,
// release() the extent; or release() without the rest. An extent's chunks always begin at the same places, those of
// different extents never overlap while both are reserved, and nothing is read that was not written whole. Chunks of one
// extent may be written, or read, by several threads at once. A forked child reads what was there when it was forked:
// memory that it inherits, or a file, in which nothing is written over before the child can know [Note: children]: a tier
// that gives the space of a released extent to another one would have to announce that too.
//
// [Note: in place]  Some slower memory can be used where it is: that of another NUMA node. Such a tier is asked to take() the
// pages that lie at a block's address, and to give_back() them, while operators use them: the kernel moves them unseen. The
// block's address, protection and state stay what they were; Block::home says whose pages it has. What lies there lies
// nowhere else for that, so going there and coming back both cost a move, and a child shares the pages like all others.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
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

  virtual int reserve(const Extent& extent) = 0;  // 0, or the errno of why there is no space
  // Of the slowest: space for all that will lie in this, so that it is not short when something has to leave.
  virtual int reserve_ahead(const Extent&) { return 0; }
  virtual void release(const Extent& extent) = 0;      // its contents are not needed any more
  // Before a fork, and after it in the parent: whether the child reads what lies there. A file's it always does.
  virtual void inherit(const Extent&, bool) {}
  virtual std::uint64_t used() const = 0;              // bytes
  virtual std::uint64_t capacity() const = 0;          // 0: without bounds, or only reserve() knows them

  // Whether contents take another space here than their size; and what these would take, judged by a sample of them. None:
  // they would be refused. Without the mutex, like write() and read().
  virtual bool packs() const { return false; }
  virtual std::uint64_t packed_peak() const { return 0; }  // the most bytes that ever lay there
  virtual std::optional<std::uint64_t> packed_bytes(const void*, std::uint64_t) const { return std::nullopt; }
  // Of its capacity, what it takes whatever the contents are.
  virtual std::uint64_t sure_bytes() const { return 0; }

  // Without the mutex: a chunk whole, or an errno.
  virtual int write(const Extent& chunk, const void* from) const = 0;
  virtual int read(const Extent& chunk, iovec* parts, int count) const = 0;  // uses up the parts
  // Likewise, of whole pages [Note: in place]. After an errno some of them are there and some here.
  virtual bool in_place() const { return false; }
  virtual int take(void* /*pages*/, std::size_t /*bytes*/) { return ENOTSUP; }  // those that are not there yet, too
  virtual int give_back(void* /*pages*/, std::size_t /*bytes*/) { return ENOTSUP; }

  virtual const char* name() const = 0;   // in a sentence: "the spill directory"
  virtual const char* where() const = 0;  // likewise, of the last call that failed: "the spill directory /var/tmp"
  virtual const char* cure(int error) const = 0;
};

class InPlaceTier : public Tier {
 public:
  bool in_place() const final { return true; }
  int write(const Extent&, const void*) const final { return ENOTSUP; }
  int read(const Extent&, iovec*, int) const final { return ENOTSUP; }
  int take(void* pages, std::size_t bytes) override = 0;
  int give_back(void* pages, std::size_t bytes) override = 0;
};

}  // namespace ebbtide
