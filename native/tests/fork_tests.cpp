// What a forked child has, and what it is refused: the bytes of the moment of the fork, or a sentence.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "../core/fault.hpp"
#include "../core/file_tier.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {

struct Ended {
  int status = 0;
  std::string said;
  bool well() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

// Runs in a forked child, which `wait`s at the returned pipe's other end first; what it said, and how it ended.
class Child {
 public:
  template <typename Run>
  explicit Child(Run run) {
    CHECK(pipe(go_) == 0 && pipe(said_) == 0);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ != 0) {
      close(said_[1]);
      return;
    }
    dup2(said_[1], STDERR_FILENO);
    close(said_[1]), close(go_[1]);
    char byte;
    if (read(go_[0], &byte, 1) != 1) _exit(99);
    _exit(run() ? 0 : 1);
  }
  Ended end() {
    CHECK(write(go_[1], "x", 1) == 1);
    Ended ended;
    char text[4096];
    for (ssize_t n; (n = read(said_[0], text, sizeof text)) > 0;) ended.said.append(text, static_cast<std::size_t>(n));
    CHECK(waitpid(pid_, &ended.status, 0) == pid_);
    for (int fd : {go_[0], go_[1], said_[0]}) close(fd);
    return ended;
  }

 private:
  int go_[2], said_[2];
  pid_t pid_;
};

constexpr std::size_t kSizes[] = {4096, 100 * std::size_t{1024}, 5 * kMiB + 4096, 12 * kMiB};

}  // namespace

TEST(a_forked_child_has_the_bytes_of_the_fork_wherever_they_were_and_whenever_they_were_born) {
  for (bool in_step : {false, true}) {
    for (bool away : {false, true}) {
      for (std::size_t n : kSizes) {
        Arena& arena = make_arena(64 * kMiB);
        if (in_step) arena.begin_step();
        char* data = filled_block(arena, n, 1);
        if (away) CHECK(arena.evict(data) > 0);
        Child child([&] {
          if (!filled(data, n, 1)) return false;
          std::memset(data, 3, n);
          auto has_it = [&] { return data[0] == 3 && data[n - 1] == 3 && arena.pin(data) == 0 && data[n / 2] == 3; };
          return in_child(has_it) && arena.evict(data) == 0;  // a child never writes to the file
        });
        CHECK(filled(data, n, 1));
        if (!away) {  // the parent changes its own; what the child shares stays as it was
          fill(data, n, 2);
          CHECK(arena.evict(data) > 0);
        }
        CHECK(child.end().well());
        CHECK(filled(data, n, away ? 1 : 2));
        if (in_step) arena.end_step();
      }
    }
  }
}

TEST(a_forked_child_reads_what_is_larger_than_the_budget_by_parts_and_the_parent_moves_nothing) {
  Arena& arena = make_arena(16 * kMiB);
  std::vector<char*> data;
  for (unsigned i = 0; i < 12; ++i) data.push_back(filled_block(arena, 8 * kMiB, i));
  char* weights = filled_block(arena, 8 * kMiB, 100);
  arena.classify(weights, Kind::Parameter);
  std::uint64_t before = arena.counters().fetched[4];
  Child child([&] {
    for (unsigned i = 0; i < 12; ++i) {
      if (!filled(data[i], 8 * kMiB, i)) return false;
    }
    return true;
  });
  CHECK(arena.counters().fetched[4] == before);
  CHECK(child.end().well());
  CHECK(filled(weights, 8 * kMiB, 100) && !arena.counters().over_budget && arena.counters().reserved_peak <= 16 * kMiB);
}

TEST(a_forked_child_that_closes_the_spill_file_is_told_so) {
  Arena& arena = make_arena(0);
  char* data = filled_block(arena, 5 * kMiB, 1);
  CHECK(arena.evict(data) > 0);
  Child child([&] {
    for (int fd = 3; fd < 1000; ++fd) close(fd);
    return filled(data, 5 * kMiB, 1);
  });
  Ended ended = child.end();
  CHECK(!ended.well() && ended.said.find("it has closed the spill file") != std::string::npos);
  CHECK(filled(data, 5 * kMiB, 1));
}

TEST(what_a_parent_changes_or_frees_after_the_fork_is_refused_to_the_child_and_nothing_wrong_is_read) {
  for (bool freed : {false, true}) {
    for (std::size_t n : kSizes) {
      Arena& arena = make_arena(0);
      char* data = filled_block(arena, n, 1);
      CHECK(arena.evict(data) > 0);
      Child child([&] { return *static_cast<volatile char*>(data) == 77; });
      if (freed) {
        arena.release(data);
        data = static_cast<char*>(arena.allocate(n));
      }
      std::memset(data, 77, n);
      CHECK(arena.evict(data) > 0);
      Ended ended = child.end();
      CHECK(!ended.well() && ended.said.find("changed or freed since") != std::string::npos);
    }
  }
}

TEST(training_state_in_a_child_is_a_sentence_whoever_took_the_signal_and_nothing_else_lies_there) {
  for (bool away : {false, true}) {
    Arena& arena = make_arena(0);
    char* weights = filled_block(arena, 12 * kMiB, 1);
    char* freed = filled_block(arena, 12 * kMiB, 1);
    arena.classify(weights, Kind::Parameter);
    arena.release(freed);
    if (away) CHECK(arena.evict(weights) > 0);
    for (char* touched : {weights, freed}) {
      Child child([&] {
        for (int i = 0; i < 64; ++i) {  // the kernel may not give its place to another mapping
          auto* other = static_cast<char*>(mmap(nullptr, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
          if (arena.contains(other)) return true;
        }
        signal(SIGSEGV, SIG_DFL);  // as a worker of a data loader does
        install_fault_handler(arena);
        return *static_cast<volatile char*>(touched) != 55;
      });
      Ended ended = child.end();
      CHECK(!ended.well() && ended.said.find("training state") != std::string::npos);
    }
    Child child([&] { return has(refusal_of([&] { arena.pin(weights); }), "training state"); });
    CHECK(child.end().well());
    CHECK(filled(weights, 12 * kMiB, 1));
  }
}

namespace {
const SpillFile::Calls real = *SpillFile::calls;
int flips_left = 0;
ssize_t read_flipped(int fd, const iovec* parts, int count, off_t offset) {
  ssize_t n = real.preadv(fd, parts, count, offset);
  if (flips_left-- > 0) static_cast<char*>(parts->iov_base)[n / 2] ^= 4;
  return n;
}
const SpillFile::Calls flipping{real.pwritev, read_flipped, real.fallocate};
}  // namespace

TEST(a_forked_child_reads_other_bytes_again_and_never_takes_them) {
  for (std::size_t n : kSizes) {
    for (int flips : {1, 3}) {
      Arena& arena = make_arena(0);
      char* data = filled_block(arena, n, 1);
      CHECK(arena.evict(data) > 0);
      Child child([&] {
        SpillFile::calls = &flipping;
        flips_left = flips;
        return filled(data, n, 1);
      });
      Ended ended = child.end();
      CHECK(flips < 3 ? ended.well() : !ended.well() && ended.said.find("other bytes come back") != std::string::npos);
      CHECK(filled(data, n, 1));
    }
  }
}
