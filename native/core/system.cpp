#include "system.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "types.hpp"

namespace ebbtide {

namespace {
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr const char* kPlaceIsGone =
    "another thread's memory came where pages go (Linux before 6.17 lets that happen in a rare race: go on from a checkpoint), so "
    "moving them";
}  // namespace

Reservation::Reservation(std::size_t bytes, std::size_t alignment, int protection, bool shared) : bytes_(bytes) {
  int flags = shared ? MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE : kReserve;
  void* raw = mmap(nullptr, bytes + alignment, protection, flags, -1, 0);
  if (raw == MAP_FAILED) {
    throw ArenaError(
        std::string("cannot reserve ") + BytesText(bytes).text + " of address space (" + std::strerror(errno) +
        "); lift the limits on memory (ulimit -v unlimited, ulimit -d unlimited) or set vm.overcommit_memory to 0 or 1");
  }
  begin_ = reinterpret_cast<char*>(round_up(reinterpret_cast<std::uintptr_t>(raw), alignment));
  madvise(begin_, bytes, MADV_DONTDUMP);
}

std::atomic<int (*)(void*, std::size_t, int)> mprotect_call{::mprotect};

bool protect(void* address, std::size_t bytes, int protection) { return mprotect_call.load()(address, bytes, protection) == 0; }

void must_protect(void* address, std::size_t bytes, int protection) {
  if (!protect(address, bytes, protection)) fatal("mprotect", errno);
}

static std::atomic<bool> has_policy = false;

// The system call itself: a thread sanitizer takes mmap for a write to all of the range, by a thread that its next user
// is not synchronised with but through a fault.
static void must_replace(void* address, std::size_t bytes, int protection, int how = MAP_FIXED) {
  long at = syscall(SYS_mmap, address, bytes, protection, kReserve | how, -1, 0);
  if (at == -1 && errno != EEXIST) fatal("mmap", errno);
  if (at != reinterpret_cast<long>(address)) fatal(kPlaceIsGone, EEXIST);
  if (int error = has_policy ? make_pages_local(address, bytes) : 0; error != 0) fatal("mbind", error);
}

int make_pages_local(void* address, std::size_t bytes) {
  return syscall(SYS_mbind, address, bytes, MPOL_LOCAL, nullptr, 0, 0) == 0 ? 0 : errno;
}

void keep_pages_where_they_are() { has_policy = true; }

void must_reserve(void* address, std::size_t bytes) { must_replace(address, bytes, PROT_NONE); }

void must_map(void* address, std::size_t bytes, bool huge) {
  must_replace(address, bytes, PROT_READ | PROT_WRITE);
  madvise(address, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  madvise(address, bytes, MADV_DONTDUMP);
  set_inherited(address, bytes, false);
}

bool can_populate() { return madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0; }

void must_populate(void* address, std::size_t bytes) {
  while (madvise(address, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno != EAGAIN && errno != EINTR) fatal("madvise(MADV_POPULATE_WRITE)", errno);
  }
}

void must_drop_pages(void* address, std::size_t bytes) {
  if (madvise(address, bytes, MADV_DONTNEED) != 0) fatal("madvise(MADV_DONTNEED)", errno);
}

// [Note: what the kernel promises]  Moves of pages rely on this, read in Linux 5.10 to 6.18 (mm/mremap.c, mm/memory.c,
// mm/mmap.c, from 6.12 on mm/vma.c):
//   Nobody sees a move half done. mremap holds the lock of the process's memory (mmap_lock) for writing from before it unmaps
//   the target until the pages are there. Before 6.4 every fault takes that lock. From 6.4 on a fault may take the lock of its
//   memory area alone (lock_vma_under_rcu); move_vma() write-locks the source's ("we don't want racing faults"), do_munmap()
//   the target's old one, which it detaches, and copy_vma() the new one before it is in the tree (from 6.6 on in vma_link()),
//   or vma_prepare() the neighbour that grows to hold it. So no fault there finds a page table without its page and fills it with
//   zeros, and neighbours in the same area wait. move_ptes() counts on an empty target; it does not look.
//   No CPU goes on using the source. move_ptes(), move_huge_pmd() and move_normal_pmd() flush its translations before they
//   unlock the page tables (page tables as a whole: from 5.14 on). mprotect, too, has flushed when it returns.
//   Who looks for a page's mappings (compaction, khugepaged, swapping) misses none: move_ptes() takes the locks of the reverse
//   mapping where copy_vma() merged areas (need_rmap_locks).
//   With MREMAP_DONTUNMAP the source stays as accessible as it was, without pages: it reads as zeros. So a place that can be
//   reached is made inaccessible before its pages move (Region::unmap()).
//   A target is unmapped before the kernel refuses for several areas (mremap_to(), to 6.16): see must_move_pages().
// What did not hold: from 6.4.0 to 6.4.2 fork did not lock the parent's areas, and threads that wrote meanwhile lost writes. In
// 6.17, until its stable releases of November 2025, move_ptes() made pages writable beside a writable one of the same large
// folio; we move pages of one protection, none of which a child shares.
static void* move_pages(void* from, void* to, std::size_t bytes) {
  void* moved = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
  return moved != MAP_FAILED ? moved : nullptr;
}

std::atomic<void* (*)(void*, void*, std::size_t)> move_call{move_pages};

void must_move_pages(void* from, void* to, std::size_t bytes) {
  if (move_call.load()(from, to, bytes) != nullptr) return;
  // Before 6.17 the kernel moves one memory area at a time, and neighbours with another history may not have been merged.
  if (errno != EFAULT || bytes <= kSmallPage) fatal("mremap", errno);
  // It says so after it has unmapped the target. Who maps memory meanwhile may get that place, and what comes there next
  // would replace it: so the place is taken again only if it is nobody's.
  must_replace(to, bytes, PROT_NONE, MAP_FIXED_NOREPLACE);
  std::size_t half = round_up(bytes / 2, kSmallPage);
  must_move_pages(from, to, half);
  must_move_pages(static_cast<char*>(from) + half, static_cast<char*>(to) + half, bytes - half);
}

bool set_inherited(void* address, std::size_t bytes, bool inherited) {
  return madvise(address, bytes, inherited ? MADV_KEEPONFORK : MADV_WIPEONFORK) == 0;
}

void* must_get(std::size_t bytes) {
  long got = syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, kReserve, -1, 0);
  if (got == -1) fatal("mmap", errno);
  return reinterpret_cast<void*>(got);
}

void must_place(void* from, void* to, std::size_t bytes) {
  if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) fatal("mremap", errno);
}

void say(const char* text) {
  char line[640];
  std::size_t n = 0;
  for (const char* part : {"ebbtide: ", text, "\n"}) {
    for (; *part != '\0' && n < sizeof line; ++part) line[n++] = *part;
  }
  [[maybe_unused]] ssize_t ignored = write(STDERR_FILENO, line, n);
}

BytesText::BytesText(std::uint64_t bytes) {
  auto value = static_cast<double>(bytes);
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = bytes < 1000 ? 0 : 1;
  if (unit == 1) value /= 1024;
  for (; unit > 0 && unit < 4 && value >= 999.5; ++unit) value /= 1024;
  int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, units[unit]);
}

// The numbers of a statm file, in bytes; 0 if it cannot be read.
static std::array<std::size_t, 6> statm_bytes(int fd) {
  char text[128];
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  text[std::max<ssize_t>(n, 0)] = '\0';
  std::array<std::size_t, 6> fields{};
  const char* p = text;
  for (std::size_t& field : fields) {
    while (*p == ' ') ++p;
    for (; *p >= '0' && *p <= '9'; ++p) field = field * 10 + static_cast<std::size_t>(*p - '0');
    field *= kSmallPage;
  }
  return fields;
}

// Why the kernel refuses memory to what keeps pages whole: the limit that is met. It neither allocates nor frees.
static const char* cause_of_enomem() {
  constexpr std::size_t kClose = std::size_t{64} << 20;  // no call asks for more
  int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  auto is_met = [fd](__rlimit_resource limit, std::size_t field) {
    rlimit at{};
    return getrlimit(limit, &at) == 0 && at.rlim_cur != RLIM_INFINITY && statm_bytes(fd)[field] + kClose > at.rlim_cur;
  };
  bool of_addresses = is_met(RLIMIT_AS, 0), of_data = is_met(RLIMIT_DATA, 5);
  if (fd >= 0) close(fd);
  if (of_addresses) {
    return " failed: address space is limited (RLIMIT_AS, ulimit -v), and far more of it is reserved than is ever filled; "
           "lift that limit: the budget bounds memory";
  }
  if (of_data) return " failed: private memory is limited (RLIMIT_DATA, ulimit -d); lift that limit: the budget bounds memory";
  if (std::size_t areas = memory_areas(), most = most_memory_areas(); areas > 0 && areas < most - most / 16) {
    return " failed: the kernel has no memory for it; leave it more, or set vm.overcommit_memory to 0 or 1";
  }
  return " failed: out of memory areas; raise vm.max_map_count, or manage only larger storages (EBBTIDE_MIN_STORAGE)";
}

void fatal(const char* what, int error) {
  char text[512];
  std::size_t n = 0;
  const char* cure = error == ENOMEM ? cause_of_enomem() : " failed; the training memory cannot be kept whole";
  for (const char* part : {"fatal: ", what, cure, ", errno "}) {
    for (; *part != '\0' && n < sizeof text - 8; ++part) text[n++] = *part;
  }
  char digits[8];
  int count = 0;
  for (int value = error; value > 0 && count < 7; value /= 10) digits[count++] = static_cast<char>('0' + value % 10);
  while (count > 0) text[n++] = digits[--count];
  text[n] = '\0';
  say(text);
  std::abort();
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

void block_sent_signals() {
  sigset_t sent;
  sigfillset(&sent);
  for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&sent, own);
  pthread_sigmask(SIG_SETMASK, &sent, nullptr);
}

std::int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

bool is_written(const void* file, std::size_t nbytes) {
  constexpr std::uint64_t kPresent = std::uint64_t{1} << 63, kSwapped = std::uint64_t{1} << 62, kOfFile = std::uint64_t{1} << 61;
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(file) / page;
  const auto last = (reinterpret_cast<std::uintptr_t>(file) + nbytes + page - 1) / page;
  int pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pages < 0) return true;
  std::vector<std::uint64_t> found(8192);
  bool written = false;
  for (std::uintptr_t at = first; at < last && !written;) {
    std::size_t wanted = std::min<std::size_t>(found.size(), last - at) * sizeof found[0];
    ssize_t got = pread(pages, found.data(), wanted, static_cast<off_t>(at * sizeof found[0]));
    const std::size_t count = got > 0 ? static_cast<std::size_t>(got) / sizeof found[0] : 0;
    written = count == 0 || std::any_of(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), [](std::uint64_t one) {
                return (one & kSwapped) != 0 || ((one & kPresent) != 0 && (one & kOfFile) == 0);
              });
    at += count;
  }
  close(pages);
  return written;
}

bool is_in_memory(const void* page) {
  unsigned char there = 0;
  return mincore(const_cast<void*>(page), kSmallPage, &there) == 0 && (there & 1) != 0;
}

std::size_t memory_areas() {
  std::size_t lines = 0;
  int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[4096];
  for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;) lines += static_cast<std::size_t>(std::count(text, text + n, '\n'));
  close(fd);
  return lines;
}

std::size_t most_memory_areas() {
  constexpr std::size_t kDefault = 65530;
  int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return kDefault;
  char text[32] = {};
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  std::size_t most = n > 0 ? std::strtoull(text, nullptr, 10) : 0;
  return most > 0 ? most : kDefault;
}

ProcessMemory process_memory() {
  struct File {  // kept open; a forked child opens its own
    pid_t pid = -1;
    int fd = -1;
    ino_t inode = 0;
  };
  static File file;
  struct stat it;
  bool is_open = file.pid == getpid() && fstat(file.fd, &it) == 0 && it.st_ino == file.inode;  // else somebody closed it
  if (!is_open) {
    file = {getpid(), open("/proc/self/statm", O_RDONLY | O_CLOEXEC)};
    if (fstat(file.fd, &it) == 0) file.inode = it.st_ino;
  }
  if (file.fd < 0) return {};
  auto fields = statm_bytes(file.fd);
  return {fields[1], fields[2]};
}

// A field of this process's status, in bytes; 0 if it cannot be read.
static std::size_t status_bytes(const char* name) {
  int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[4096];
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  text[std::max<ssize_t>(n, 0)] = '\0';
  const char* field = std::strstr(text, name);
  return field == nullptr ? 0 : std::strtoull(field + std::strlen(name), nullptr, 10) * 1024;
}

std::size_t process_peak_bytes() { return status_bytes("VmHWM:"); }

std::size_t process_file_bytes() { return status_bytes("RssFile:"); }

std::size_t anonymous_bytes(pid_t process) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/statm", static_cast<int>(process));
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  auto fields = statm_bytes(fd);
  std::size_t resident = fields[1], shared = fields[2];
  close(fd);
  return resident - std::min(resident, shared);
}

bool kill_child(pid_t process) {
  siginfo_t ended;
  bool is_ours = waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT) == 0;
  return is_ours && kill(process, SIGKILL) == 0;
}

}  // namespace ebbtide
