// A system that takes its time and gives little: preloaded, it stands in front of the calls by which the arena moves pages
// and bytes (by syscall() and by name). All that it does a kernel may do. It counts, so that a test can tell that it was asked.
//
// UNKIND_SYSTEM holds "seed:chance:us": so many of 1,000 calls wait up to so many microseconds, before and after. So many, too,
// of preadv and pwritev move fewer pages than asked, or are interrupted.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1

struct Count {
  const char* name;
  std::atomic<long> value{0};
};
enum Counted {
  Preadv,
  Pwritev,
  Mprotect,
  Mremap,
  Madvise,
  Mmap,
  Delayed,
  Shortened,
  Interrupted,
  Collapsed,
  ReadBytes,
  WrittenBytes,
  kCounted
};
Count counts[kCounted] = {{"preadv"},  {"pwritev"},   {"mprotect"},    {"mremap"},    {"madvise"},    {"mmap"},
                          {"delayed"}, {"shortened"}, {"interrupted"}, {"collapsed"}, {"read_bytes"}, {"written_bytes"}};

unsigned long seed = 1, chance = 0, most_us = 0;
long (*real_syscall)(long, ...) = nullptr;
std::atomic<std::uintptr_t> seen[64];  // addresses of late
std::atomic<unsigned> see{0};
std::atomic<unsigned long> threads{0};

__attribute__((constructor)) void begin() {
  real_syscall = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  if (const char* text = std::getenv("UNKIND_SYSTEM")) std::sscanf(text, "%lu:%lu:%lu", &seed, &chance, &most_us);
}

// initial-exec: a signal handler comes here, too.
__attribute__((tls_model("initial-exec"))) thread_local unsigned long state = 0;

unsigned long draw(unsigned long below) {
  if (state == 0) state = (seed * 2 + 1) * 0x9e3779b97f4a7c15ul + ++threads;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (state * 2685821657736338717ul >> 11) % below;
}

bool chosen() { return chance > 0 && draw(1000) < chance; }

void wait() {
  if (most_us == 0 || !chosen()) return;
  int error = errno;
  ++counts[Delayed].value;
  timespec pause{0, static_cast<long>(1 + draw(most_us)) * 1000};
  nanosleep(&pause, nullptr);
  errno = error;
}

template <typename Call>
auto around(Counted which, const void* address, Call call) {
  ++counts[which].value;
  seen[see++ % 64] = reinterpret_cast<std::uintptr_t>(address);
  wait();
  auto result = call();
  wait();
  return result;
}

long transfer(long number, long fd, const iovec* parts, long count, long offset) {
  const bool out = number == SYS_pwritev;
  if (chosen()) {
    ++counts[Interrupted].value;
    errno = EINTR;
    return -1;
  }
  iovec first = parts[0];
  if (first.iov_len > kPage && chosen()) {
    ++counts[Shortened].value;
    first.iov_len = kPage * (1 + draw(first.iov_len / kPage));
    parts = &first;
    count = 1;
  }
  long n = around(out ? Pwritev : Preadv, nullptr, [&] { return real_syscall(number, fd, parts, count, offset, 0L); });
  if (n > 0) counts[out ? WrittenBytes : ReadBytes].value += n;
  return n;
}

[[noreturn]] void* collapse(void*) {
  for (;;) {
    std::uintptr_t at = seen[draw(64)] / kHugePage * kHugePage;
    if (at != 0 && real_syscall(SYS_madvise, at, kHugePage, kCollapse) == 0) ++counts[Collapsed].value;
    usleep(100);
  }
}

}  // namespace

extern "C" long unkind_count(const char* name) {
  for (Count& count : counts) {
    if (std::strcmp(count.name, name) == 0) return count.value;
  }
  return -1;
}

// From another thread, until the process ends.
extern "C" void unkind_collapse() {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, collapse, nullptr) != 0) std::abort();
}

extern "C" long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_pwritev || number == SYS_preadv)
    return transfer(number, a[0], reinterpret_cast<const iovec*>(a[1]), a[2], a[3]);
  auto call = [&] { return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]); };
  return number == SYS_mmap ? around(Mmap, nullptr, call) : call();
}

extern "C" int mprotect(void* address, std::size_t bytes, int protection) noexcept {
  return around(Mprotect, address, [&] { return static_cast<int>(real_syscall(SYS_mprotect, address, bytes, protection)); });
}

extern "C" int madvise(void* address, std::size_t bytes, int advice) noexcept {
  return around(Madvise, address, [&] { return static_cast<int>(real_syscall(SYS_madvise, address, bytes, advice)); });
}

extern "C" void* mremap(void* from, std::size_t bytes, std::size_t new_bytes, int flags, ...) noexcept {
  va_list list;
  va_start(list, flags);
  void* to = va_arg(list, void*);
  va_end(list);
  return around(Mremap, to, [&] { return reinterpret_cast<void*>(real_syscall(SYS_mremap, from, bytes, new_bytes, flags, to)); });
}
