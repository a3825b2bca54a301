// Faults answered through userfaultfd, where that is permitted: then a system call that is handed an evicted storage waits
// for it as the program itself does, and what a system call writes is noticed, instead of failing with EFAULT.
//
// [Note: userfaultfd]  A signal tells only of the program's own accesses. So here no block is ever inaccessible or read-only
// by its memory area: all areas with pages are registered for missing pages and for write protection, an absent block is
// one without pages, a clean one has its pages write-protected. Whoever meets either, in the kernel or not, sleeps until
// woken. Bytes and protection appear at once because mremap takes the protection along (EVENT_REMAP); for that it waits
// until somebody has read the event. Hence two threads: the reader waits for no one, the answerer does what the signal handler
// does, under the arena's mutex. (A third holds the file open.) What sleeps in a fault holds no lock of the address space, so
// mremap is not in its way. No page of a resident block may be missing (an I/O thread must not fault on what the answerer
// waits for), so pages are populated when they are made.
//
// Not covered: pages that the kernel has pinned and goes on using (O_DIRECT, registered buffers of io_uring,
// MSG_ZEROCOPY) and that are evicted meanwhile.
#pragma once

#include <linux/userfaultfd.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "page_backend.hpp"

namespace ebbtide {

class Userfault final : public PageBackend {
 public:
  static std::unique_ptr<Userfault> open();  // null where the kernel does not permit it or lacks what it takes
  ~Userfault() override;
  Userfault(const Userfault&) = delete;
  Userfault& operator=(const Userfault&) = delete;

  using OnFault = std::function<void(const void* address, bool write)>;
  void start(OnFault on_fault);  // it is called on a thread of this
  void stop();  // no area may move, and nothing may fault, from then on

  bool keeps_absent_mapped() const override { return true; }
  void made(void* at, std::size_t bytes) const override;
  void before_move(void*, std::size_t) const override {}
  bool make_read_only(void* at, std::size_t bytes) const override;
  void make_writable(void* at, std::size_t bytes) const override { protect(at, bytes, 0); }  // it wakes who waits

 private:
  Userfault(int file, int stop);
  bool is_open() const;  // its descriptor is still its own
  void read_events();
  void answer();
  void keep_open();
  void wake(void* address) const;
  void protect(void* at, std::size_t bytes, std::uint64_t mode) const;

  struct Fault {
    void* address;
    bool write;
  };

  int file_;
  int stop_;  // an eventfd
  dev_t device_;
  ino_t inode_;
  OnFault on_fault_;
  std::mutex mutex_;
  std::condition_variable waiting_;
  std::vector<Fault> faults_;
  bool stopping_ = false;
  std::thread reader_, answerer_, keeper_;
};

}  // namespace ebbtide
