// A disk that fails as it is told, for one process: preloaded, it stands in front of the calls that Ebbtide makes on
// its spill files (preadv and pwritev by syscall(), fallocate), which nothing else in PyTorch makes.
//
// FAULTY_DISK holds rules: "call:after:count:fault" with blanks between them. After so many calls of that name, so many
// (-1: all) suffer the fault. The first of these calls reads them, so a forked process may have its own. A fault is an
// errno by its number, or
//   slow<ms>  it takes so long             short    it transfers 12 KiB at most
//   rate<MB/s>  all that suffer it share a disk that transfers so much, one call after the other
//   flip      one bit comes back flipped   lost     it says that it wrote
//   torn      the last 4 KiB are not written          astray   it writes 4 KiB further on
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Rule {
  char call[16];
  long after, count;
  char fault[16];
  std::atomic<long> seen;
  std::atomic<long> busy_until_ns;  // of a rate
};

constexpr int kMostRules = 8;
Rule rules[kMostRules];
int rule_count = 0;
long (*real_syscall)(long, ...) = nullptr;
int (*real_fallocate)(int, int, long, long) = nullptr;

__attribute__((constructor)) void find_calls() {
  real_syscall = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  real_fallocate = reinterpret_cast<int (*)(int, int, long, long)>(dlsym(RTLD_NEXT, "fallocate"));
}

bool read_rules() {
  const char* text = std::getenv("FAULTY_DISK");
  for (int used = 0; text != nullptr && rule_count < kMostRules; text += used) {
    Rule& rule = rules[rule_count];
    if (std::sscanf(text, " %15[^:]:%ld:%ld:%15s%n", rule.call, &rule.after, &rule.count, rule.fault, &used) != 4) break;
    ++rule_count;
  }
  return true;
}

// The rule by whose fault this call suffers, or null.
Rule* rule_of(const char* call) {
  [[maybe_unused]] static const bool are_read = read_rules();
  Rule* found = nullptr;
  for (int i = 0; i < rule_count; ++i) {
    Rule& rule = rules[i];
    if (std::strcmp(rule.call, call) != 0) continue;
    long nth = rule.seen.fetch_add(1) - rule.after;
    if (nth >= 0 && (rule.count < 0 || nth < rule.count)) found = &rule;
  }
  return found;
}

const char* fault_of(const Rule* rule) { return rule == nullptr ? "" : rule->fault; }

// Waits until a disk of the rule's rate would have transferred this, after what was asked of it before.
void wait_for_rate(Rule& rule, long bytes) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  long now_ns = now.tv_sec * 1000000000 + now.tv_nsec, before = rule.busy_until_ns.load(), until = 0;
  do {
    until = (before > now_ns ? before : now_ns) + bytes * 1000 / std::atol(rule.fault + 4);
  } while (!rule.busy_until_ns.compare_exchange_weak(before, until));
  timespec end{until / 1000000000, until % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == EINTR) {}
}

bool fails(const char* fault) {
  if (std::strncmp(fault, "slow", 4) == 0) {
    long ms = std::atol(fault + 4);
    timespec pause{ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, nullptr);
  }
  if (fault[0] < '0' || fault[0] > '9') return false;
  errno = std::atoi(fault);
  return true;
}

long transfer(long number, long fd, const iovec* parts, long count, long offset) {
  bool out = number == SYS_pwritev;
  Rule* rule = rule_of(out ? "pwritev" : "preadv");
  const char* fault = fault_of(rule);
  if (fails(fault)) return -1;
  constexpr long kPage = 4096;
  iovec last = parts[count - 1];
  if (std::strcmp(fault, "short") == 0) {
    iovec first = {parts->iov_base, parts->iov_len < 3 * kPage ? parts->iov_len : 3 * kPage};
    return real_syscall(number, fd, &first, 1L, offset, 0L);
  }
  long bytes = 0;
  for (long i = 0; i < count; ++i) bytes += static_cast<long>(parts[i].iov_len);
  if (std::strcmp(fault, "lost") == 0) return bytes;
  if (std::strcmp(fault, "torn") == 0 && count == 1) {
    last.iov_len -= kPage;
    if (last.iov_len > 0) real_syscall(number, fd, &last, 1L, offset, 0L);
    return bytes;
  }
  if (std::strcmp(fault, "astray") == 0) offset += kPage;
  long n = real_syscall(number, fd, parts, count, offset, 0L);
  if (n > 0 && std::strncmp(fault, "rate", 4) == 0) wait_for_rate(*rule, n);
  if (n == bytes && std::strcmp(fault, "flip") == 0) static_cast<char*>(last.iov_base)[last.iov_len / 2] ^= 4;
  return n;
}

}  // namespace

extern "C" long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_pwritev || number == SYS_preadv)
    return transfer(number, a[0], reinterpret_cast<const iovec*>(a[1]), a[2], a[3]);
  return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

extern "C" int fallocate(int fd, int mode, long offset, long bytes) {
  if (fails(fault_of(rule_of("fallocate")))) return -1;
  return real_fallocate(fd, mode, offset, bytes);
}
