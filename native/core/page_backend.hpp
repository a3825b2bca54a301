// How a touch of an absent page, and a write to a read-only one, are noticed: by a signal (here), or by userfaultfd
// (userfault.hpp).
//
// All of it is async-signal-safe. Where the kernel refuses, the process ends, but for make_read_only().
#pragma once

#include <cstddef>

namespace ebbtide {

class PageBackend {
 public:
  virtual ~PageBackend() = default;

  // Whether absent places stay mapped, without pages. Then no protection parts memory areas either.
  virtual bool keeps_absent_mapped() const = 0;

  virtual void made(void* at, std::size_t bytes) const = 0;        // these have just been mapped, writable
  virtual void before_move(void* at, std::size_t bytes) const = 0;  // their pages are about to move away
  virtual bool make_read_only(void* at, std::size_t bytes) const = 0;  // false: the kernel refused
  virtual void make_writable(void* at, std::size_t bytes) const = 0;
};

// Absent places are inaccessible, and what nobody may write to is read-only: the fault handler hears of it.
const PageBackend& signals();

}  // namespace ebbtide
