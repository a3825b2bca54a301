#include "userfault.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

namespace {

constexpr std::uint64_t kFeatures = UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;

int open_file() {
  int file = static_cast<int>(syscall(SYS_userfaultfd, kFlags));
  if (file >= 0) return file;
#ifdef USERFAULTFD_IOC_NEW
  int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (device < 0) return -1;
  file = ioctl(device, USERFAULTFD_IOC_NEW, kFlags);
  close(device);
#endif
  return file;
}

uffdio_range range(void* address, std::size_t bytes) { return {reinterpret_cast<std::uintptr_t>(address), bytes}; }

[[noreturn]] void closed() {
  char what[256];
  std::snprintf(what, sizeof what, "using userfaultfd (%s)", kClosedByScript);
  fatal(what, EBADF);
}

// An errno, or 0.
int try_ioctl(int file, unsigned long request, void* argument) {
  while (ioctl(file, request, argument) != 0) {
    if (errno == EBADF || errno == ENOTTY) closed();
    if (errno != EAGAIN && errno != EINTR) return errno;
  }
  return 0;
}

void must_ioctl(int file, unsigned long request, void* argument, const char* what) {
  if (int error = try_ioctl(file, request, argument); error != 0) fatal(what, error);
}

}  // namespace

std::unique_ptr<Userfault> Userfault::open() {
  if (!can_populate()) return nullptr;
  int file = open_file();
  if (file < 0) return nullptr;
  uffdio_api api{UFFD_API, kFeatures, 0};
  int stop = ioctl(file, UFFDIO_API, &api) == 0 ? eventfd(0, EFD_CLOEXEC) : -1;
  if (stop >= 0) return std::unique_ptr<Userfault>(new Userfault(file, stop));
  close(file);
  return nullptr;
}

Userfault::Userfault(int file, int stop) : file_(file), stop_(stop) {
  struct stat it;
  if (fstat(file, &it) != 0) fatal("fstat", errno);
  device_ = it.st_dev, inode_ = it.st_ino;
}

Userfault::~Userfault() {
  close(file_);
  close(stop_);
}

bool Userfault::is_open() const {
  struct stat it;
  return fstat(file_, &it) == 0 && it.st_dev == device_ && it.st_ino == inode_;
}

void Userfault::start(OnFault on_fault) {
  on_fault_ = std::move(on_fault);
  reader_ = std::thread([this] { read_events(); });
  answerer_ = std::thread([this] { answer(); });
  keeper_ = std::thread([this] { keep_open(); });
}

void Userfault::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.notify_all();
  }
  eventfd_write(stop_, 1);
  answerer_.join();
  reader_.join();
  keeper_.join();
}

void Userfault::made(void* at, std::size_t bytes) const {
  must_populate(at, bytes);
  uffdio_register request{range(at, bytes), UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP, 0};
  must_ioctl(file_, UFFDIO_REGISTER, &request, "registering memory with userfaultfd");
}

bool Userfault::make_read_only(void* at, std::size_t bytes) const {
  protect(at, bytes, UFFDIO_WRITEPROTECT_MODE_WP);
  return true;
}

void Userfault::protect(void* at, std::size_t bytes, std::uint64_t mode) const {
  uffdio_writeprotect request{range(at, bytes), mode};
  int error = try_ioctl(file_, UFFDIO_WRITEPROTECT, &request);
  if (error == 0) return;
  // Before Linux 6.3 a range has to lie within one memory area, and a place may be made of several.
  std::size_t half = bytes / 2 / kSmallPage * kSmallPage;
  if (error != ENOENT || half == 0) fatal("write protection by userfaultfd", error);
  protect(at, half, mode);
  protect(static_cast<char*>(at) + half, bytes - half, mode);
}

void Userfault::wake(void* address) const {
  uffdio_range page = range(address, kSmallPage);
  must_ioctl(file_, UFFDIO_WAKE, &page, "waking a thread by userfaultfd");
}

// Whoever waits in poll holds the file, whatever becomes of its descriptor: once nobody does, the kernel fills what is absent
// with zeros. So who meets that sleeps until read_events() has found the descriptor closed and ended the process.
void Userfault::keep_open() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pollfd files[] = {{file_, 0, 0}, {stop_, POLLIN, 0}};
  poll(files, 2, -1);
  std::lock_guard lock(mutex_);
  if (!stopping_) closed();
}

// Must not wait for anything but events: a thread that holds the arena's mutex may be waiting for it.
void Userfault::read_events() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    pollfd files[] = {{file_, POLLIN, 0}, {stop_, POLLIN, 0}};
    poll(files, 2, -1);
    if (files[1].revents != 0) {
      std::lock_guard lock(mutex_);
      if (!stopping_) closed();
      return;
    }
    if (!is_open()) closed();
    uffd_msg events[16];
    ssize_t bytes = read(file_, events, sizeof events);
    if (bytes < 0 && errno != EAGAIN && errno != EINTR) closed();
    for (ssize_t i = 0; i < bytes / static_cast<ssize_t>(sizeof *events); ++i) {
      if (events[i].event != UFFD_EVENT_PAGEFAULT) continue;  // of a move: that it was read is enough
      const auto& fault = events[i].arg.pagefault;
      auto address = reinterpret_cast<void*>(fault.address / kSmallPage * kSmallPage);
      std::lock_guard lock(mutex_);
      faults_.push_back({address, (fault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0});
      waiting_.notify_one();
    }
  }
}

void Userfault::answer() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (faults_.empty()) {
      waiting_.wait(lock);
      continue;
    }
    Fault fault = faults_.front();
    faults_.erase(faults_.begin());
    lock.unlock();
    on_fault_(fault.address, fault.write);  // of nobody's memory: it is inaccessible by now, and so a crash
    wake(fault.address);
    lock.lock();
  }
}

}  // namespace ebbtide
