// System calls that are handed storages which are away: where userfaultfd is permitted they wait, and nothing is lost.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace ebbtide;

namespace {

// Null, with a line that says so, where it is not permitted.
Arena* serving_arena(std::uint64_t limit, Options options = {}) {
  options.userfault = true;
  Arena& arena = make_arena(limit, options);
  if (arena.serves_system_calls()) return &arena;
  std::printf("  skipped: userfaultfd is not permitted here\n");
  return nullptr;
}

struct TemporaryFile {
  int fd = open(spill_directory(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  TemporaryFile() { CHECK(fd >= 0); }
  ~TemporaryFile() { close(fd); }
};

void put(int fd, const void* p, std::size_t n) { CHECK(pwrite(fd, p, n, 0) == static_cast<ssize_t>(n)); }
void get(int fd, void* p, std::size_t n) { CHECK(pread(fd, p, n, 0) == static_cast<ssize_t>(n)); }

}  // namespace

TEST(system_calls_read_from_and_write_into_absent_storages) {
  Arena* arena = serving_arena(0);
  if (arena == nullptr) return;
  TemporaryFile file;
  for (std::size_t n : {std::size_t{4096}, 100 * std::size_t{1024}, 2 * kMiB, 9 * kMiB, 32 * kMiB + 12}) {
    std::vector<char> copy(n), seen(n);
    void* p = arena->allocate(n);
    fill(p, n, 1);
    CHECK(arena->evict(p) >= n && arena->state(p) == State::Absent);
    put(file.fd, p, n);
    CHECK(arena->state(p) == State::Clean);  // it was only read
    get(file.fd, seen.data(), n);
    CHECK(filled(seen.data(), n, 1));

    fill(copy.data(), n, 2);
    put(file.fd, copy.data(), n);
    CHECK(arena->evict(p) >= n);
    get(file.fd, p, n);  // into an absent one
    CHECK(arena->state(p) == State::Dirty && filled(p, n, 2));
    CHECK(arena->evict(p) >= n && filled(p, n, 2));  // what was written came back

    CHECK(arena->state(p) == State::Clean);
    fill(copy.data(), n, 3);
    put(file.fd, copy.data(), n);
    get(file.fd, p, n);  // into a clean one
    CHECK(arena->state(p) == State::Dirty);
    CHECK(arena->evict(p) >= n && filled(p, n, 3));
    arena->check_invariants();
    static_cast<char*>(p)[n / 2] ^= 1;  // the program's own first write is noticed too
    CHECK(arena->state(p) == State::Dirty);
    static_cast<char*>(p)[n / 2] ^= 1;
    CHECK(arena->evict(p) >= n && filled(p, n, 3));
    CHECK(arena->evict(p) >= n);
    arena->release(p);  // absent
    arena->check_invariants();
  }
}

// In a forked process of its own, which ends: native code cannot go on without its file.
TEST(a_process_whose_file_of_userfaultfd_is_closed_ends_and_says_why) {
#ifdef __SANITIZE_THREAD__
  return;  // TSan lets a forked child of a process with threads start none
#endif
  int said[2];
  CHECK(pipe(said) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(said[1], STDERR_FILENO);
    Arena* arena = serving_arena(0);
    if (arena == nullptr) _exit(77);
    void* p = arena->allocate(9 * kMiB);
    fill(p, 9 * kMiB, 1);
    if (arena->evict(p) == 0) _exit(1);
    for (int fd = 3; fd < 1000; ++fd) close(fd);
    _exit(filled(p, 9 * kMiB, 1) ? 2 : 3);
  }
  close(said[1]);
  std::string text;
  char part[512];
  for (ssize_t n; (n = read(said[0], part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  close(said[0]);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return;
  CHECK(WIFSIGNALED(status) && text.find("the script closed a file that it had not opened") != std::string::npos);
}

// A system call writes into a storage while it is being written out: that cancels the eviction.
TEST(a_system_call_that_writes_cancels_an_eviction) {
  struct Interference {
    char* p = nullptr;
    int fd = -1;
    std::atomic<bool> armed{false};
  } interference;
  Options options;
  options.hook.call = [](Point point, BlockId, void* argument) {
    auto& i = *static_cast<Interference*>(argument);
    if (point == Point::AfterChunk && i.armed.exchange(false)) CHECK(pread(i.fd, i.p, 100, 0) == 100);
  };
  options.hook.argument = &interference;
  Arena* arena = serving_arena(0, options);
  if (arena == nullptr) return;
  TemporaryFile file;
  std::vector<char> copy(9 * kMiB);
  fill(copy.data(), copy.size(), 2);
  put(file.fd, copy.data(), copy.size());
  auto* p = static_cast<char*>(arena->allocate(9 * kMiB));
  fill(p, 9 * kMiB, 1);
  interference.p = p;
  interference.fd = file.fd;
  interference.armed = true;
  CHECK(arena->evict(p) == 0 && arena->state(p) == State::Dirty);
  CHECK(arena->counters().cancelled == 1);
  CHECK(arena->evict(p) >= 9 * kMiB);
  CHECK(std::memcmp(p, copy.data(), 100) == 0);
  arena->release(p);
  arena->check_invariants();
}

// More than fits, so that others are evicted while one is sent; and a thread that evicts all the time beside it.
TEST(threads_send_and_receive_storages_that_come_and_go) {
  constexpr std::size_t kBlock = 3 * kMiB;
  constexpr unsigned kPairs = 3, kRounds = 20;
  Arena* arena = serving_arena(24 * kMiB);
  if (arena == nullptr) return;
  std::atomic<bool> done{false};
  std::vector<char*> all;
  for (unsigned i = 0; i < 2 * kPairs * 3; ++i) {
    all.push_back(static_cast<char*>(arena->allocate(kBlock)));
    fill(all.back(), kBlock, i);
  }
  std::thread evicting([&] {
    for (std::size_t i = 0; !done; ++i) arena->evict(all[i % all.size()]);
  });
  std::vector<std::thread> threads;
  for (unsigned pair = 0; pair < kPairs; ++pair) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    char** mine = &all[pair * 6];
    threads.emplace_back([=] {
      for (unsigned round = 0; round < kRounds; ++round) {
        char* p = mine[round % 3];
        for (std::size_t sent = 0; sent < kBlock;) {
          ssize_t n = send(ends[0], p + sent, kBlock - sent, 0);
          CHECK(n > 0);
          sent += static_cast<std::size_t>(n);
        }
      }
      close(ends[0]);
    });
    threads.emplace_back([=] {
      for (unsigned round = 0; round < kRounds; ++round) {
        char* p = mine[3 + round % 3];
        CHECK(recv(ends[1], p, kBlock, MSG_WAITALL) == static_cast<ssize_t>(kBlock));
        CHECK(filled(p, kBlock, pair * 6 + round % 3));
      }
      close(ends[1]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  evicting.join();
  for (unsigned i = 0; i < all.size(); ++i) CHECK(filled(all[i], kBlock, i / 6 * 6 + i % 3));
  Counters c = arena->counters();
  CHECK(c.faults > 0 && c.fetched[4] > 0 && !c.over_budget);
  arena->check_invariants();
}

// A data set that a forked child inherits: the child writes to its copy, the parent's stays, and still serves system calls.
TEST(a_forked_child_writes_to_what_it_inherits_and_the_parent_sends_it) {
  Arena* arena = serving_arena(64 * kMiB);
  if (arena == nullptr) return;
  auto* p = static_cast<char*>(arena->allocate(8 * kMiB));
  fill(p, 8 * kMiB, 1);
  for (bool away : {true, false}) {
    if (away) CHECK(arena->evict(p) > 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      if (!filled(p, 8 * kMiB, 1)) _exit(1);
      p[5] ^= 1;
      _exit(filled(p, 8 * kMiB, 1) ? 2 : 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(filled(p, 8 * kMiB, 1));  // it is in memory when the second one is forked
  }
  TemporaryFile file;
  std::vector<char> seen(8 * kMiB);
  for (int round = 0; round < 2; ++round) {  // first what the child shared, then what never was
    CHECK(arena->evict(p) > 0 && arena->state(p) == State::Absent);
    put(file.fd, p, seen.size());
    get(file.fd, seen.data(), seen.size());
    CHECK(filled(seen.data(), seen.size(), 1));
  }
  arena->release(p);
  arena->check_invariants();
}
