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
// [Note: without bounds]  A tier whose capacity is 0 keeps the space of an extent that was reserved once: it may be reserved
// again, and release() gains nothing. So space can be had ahead of need, as long as there is some.
//
// [Note: in place]  Some slower memory can be used where it is: that of another NUMA node. Such a tier is asked to take() the
// pages that lie at a block's address, and to give_back() them, while operators use them: the kernel moves them unseen. The
// block's address, protection and state stay what they were; Block::home says whose pages it has. What lies there lies
// nowhere else for that, so going there and coming back both cost a move, and a child shares the pages like all others.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "types.hpp"

namespace ebbtide {

// Bytes [begin, begin + bytes) of the region of huge pages (0) or of small ones (1).
struct Extent {
  unsigned region = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

inline constexpr unsigned kRegions = 2;
inline constexpr std::array<std::size_t, kRegions> kRegionPage{kHugePage, kSmallPage};

struct Space {
  std::uint64_t used = 0;      // bytes
  std::uint64_t capacity = 0;  // 0: without bounds, or only reserve() knows them
};

// Of an errno: where it came from, in a sentence ("the spill directory /var/tmp"), and what to do.
struct Failure {
  const char* where;
  const char* cure;
};

// What every tier does. Nothing here may allocate or free, or wait for a lock under which somebody does: faults are served by
// these calls.
class Tier {
 public:
  virtual ~Tier() = default;

  // --- under the arena's mutex
  virtual int reserve(const Extent& extent) = 0;   // 0, or the errno of why there is no space
  virtual void release(const Extent& extent) = 0;  // its contents are not needed any more
  virtual Space space() const = 0;

  // --- without it
  virtual int write(const Extent& chunk, const void* from) = 0;              // a chunk whole, or an errno
  virtual int read(const Extent& chunk, iovec* parts, int count) const = 0;  // likewise; uses up the parts

  // Of the last call that failed. EBADMSG: none did, but other bytes came back than were written.
  virtual Failure explain(int error) const = 0;
};

// One whose memory is used where it is [Note: in place]. It has bounds. These are asked for whole pages, without the mutex; 0
// or an errno, after which some of the pages are there and some here.
class InPlaceTier : public Tier {
 public:
  virtual int take(void* pages, std::size_t bytes) = 0;  // those that are not there yet, too
  virtual int give_back(void* pages, std::size_t bytes) = 0;

  int write(const Extent&, const void*) final { return ENOTSUP; }
  int read(const Extent&, iovec*, int) const final { return ENOTSUP; }
};

// One in which contents take another space than their size.
class PackingTier : public Tier {
 public:
  virtual std::uint64_t packed_peak() const = 0;  // the most bytes that ever lay there
  // What these would take, judged by a sample of them. None: they would be refused. Without the mutex.
  virtual std::optional<std::uint64_t> packed_bytes(const void* from, std::uint64_t bytes) const = 0;
};

}  // namespace ebbtide
