// The spill file: one directory, and stripes over several.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <mutex>
#include <vector>

#include "../core/system.hpp"
#include "../core/file_tier.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {

constexpr std::size_t kMostPages = std::size_t{1} << 16;
const SpillFile::Calls real = *SpillFile::calls;

// Where bytes went: the descriptors in the order in which space was reserved, and what lies in each by a naive count.
struct Seen {
  std::vector<int> fds;
  std::vector<std::uint64_t> reserved;
  std::vector<std::vector<int>> writes;  // of each 4 KiB page of each file; made ahead: the fault handler writes, too
} seen;
std::mutex seen_mutex;  // several threads of an arena write
int full_fd = -1;         // of this one nothing more can be reserved,
std::size_t full_nth = 0;  // or of the nth one seen

std::size_t nth(int fd) {
  for (std::size_t i = 0; i < seen.fds.size(); ++i) {
    if (seen.fds[i] == fd) return i;
  }
  seen.fds.push_back(fd);
  seen.reserved.push_back(0);
  seen.writes.emplace_back(kMostPages);
  return seen.fds.size() - 1;
}
int reserve_seen(int fd, int mode, off_t offset, off_t bytes) {
  std::lock_guard lock(seen_mutex);
  std::size_t i = nth(fd);
  if (full_fd == fd || full_nth == i + 1) {
    errno = ENOSPC;
    return -1;
  }
  CHECK(static_cast<std::uint64_t>(offset) == seen.reserved[i]);  // neither twice nor with a hole
  seen.reserved[i] += static_cast<std::uint64_t>(bytes);
  return real.fallocate(fd, mode, offset, bytes);
}
ssize_t write_seen(int fd, const iovec* parts, int count, off_t offset) {
  ssize_t n = real.pwritev(fd, parts, count, offset);
  std::lock_guard lock(seen_mutex);
  std::size_t i = nth(fd);
  for (off_t at = offset; at < offset + n; at += kSmallPage) {
    std::size_t page = static_cast<std::size_t>(at) / kSmallPage;
    ++seen.writes[i].at(page);
  }
  return n;
}
ssize_t write_little(int fd, const iovec* parts, int, off_t offset) {
  iovec piece = {parts->iov_base, std::min<std::size_t>(parts->iov_len, 3 * kSmallPage)};
  return write_seen(fd, &piece, 1, offset);
}
ssize_t fail_on_full(int fd, const iovec* parts, int count, off_t offset) {
  if (fd != full_fd) return real.pwritev(fd, parts, count, offset);
  errno = EIO;
  return -1;
}

const SpillFile::Calls watching{write_seen, real.preadv, reserve_seen};

struct WithCalls {
  const SpillFile::Calls* before = SpillFile::calls;
  explicit WithCalls(const SpillFile::Calls& calls) {
    SpillFile::calls = &calls;
    seen = {};
    full_fd = -1;
    full_nth = 0;
  }
  ~WithCalls() { SpillFile::calls = before; }
};

struct Directory {
  std::string path = std::string(spill_directory()) + "/ebbtide-test-XXXXXX";
  Directory() { CHECK(mkdtemp(path.data()) != nullptr); }
  ~Directory() { rmdir(path.c_str()); }
};

// Pages that say where they belong.
struct Pages {
  Reservation memory;
  explicit Pages(std::size_t bytes) : memory(bytes, kHugePage, PROT_READ | PROT_WRITE) {}
  std::uint64_t& word(std::size_t page) { return *reinterpret_cast<std::uint64_t*>(memory.begin() + page * kSmallPage); }
  std::size_t count() const { return memory.size() / kSmallPage; }
  // All of it, in parts of random sizes.
  std::vector<iovec> parts(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<iovec> made;
    for (std::size_t at = 0; at < memory.size();) {
      std::size_t bytes = std::min<std::size_t>((1 + random() % 1500) * kSmallPage, memory.size() - at);
      made.push_back({memory.begin() + at, bytes});
      at += bytes;
    }
    return made;
  }
};

}  // namespace

TEST(no_file_has_a_standard_descriptor) {
  pid_t child = fork();
  if (child == 0) {
    for (int fd : {0, 1, 2}) close(fd);
    SpillFile file({spill_directory(), spill_directory()});
    _exit(std::ranges::count_if(std::array{0, 1, 2}, [](int fd) { return fcntl(fd, F_GETFD) != -1; }));
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

TEST(a_spill_file_has_no_name_and_the_bytes_come_back) {
  Directory directory;
  SpillFile file({directory.path, directory.path});
  CHECK(file.reserve(1 << 20) == 0 && file.reserved() >= 1 << 20);
  alignas(4096) static char out[8192], in[8192];
  std::memset(out, 42, sizeof out);
  iovec parts[] = {{out, 4096}, {out + 4096, 4096}};
  CHECK(file.write(parts, 2, 4096) == 0);
  iovec back[] = {{in, sizeof in}};
  CHECK(file.read(back, 1, 4096) == 0);
  CHECK(std::memcmp(in, out, sizeof in) == 0);
  CHECK(rmdir(directory.path.c_str()) == 0);  // it is empty
}

TEST(a_spill_directory_that_does_not_exist_is_an_error_that_says_what_to_do) {
  std::string missing = std::string(spill_directory()) + "/nobody made this one";
  std::string said = refusal_of([&] { SpillFile file({spill_directory(), missing}); });
  CHECK(has(said, missing.c_str()) && has(said, "--spill"));
}

TEST(where_a_file_system_has_no_unnamed_files_a_file_loses_its_name_at_once) {
  sock_filter refusal[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{static_cast<unsigned short>(std::size(refusal)), refusal};
  std::string own = std::string(spill_directory()) + "/unnamed-XXXXXX";
  CHECK(mkdtemp(own.data()) != nullptr);
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  CHECK(open(own.c_str(), O_TMPFILE | O_RDWR, 0600) < 0 && errno == EOPNOTSUPP);
  SpillFile file({own});
  CHECK(std::filesystem::is_empty(own));
  Pages out(8 * kMiB), in(8 * kMiB);
  for (std::size_t page = 0; page < out.count(); ++page) out.word(page) = page + 1;
  std::vector<iovec> parts = out.parts(1), back = in.parts(1);
  CHECK(file.reserve(8 * kMiB) == 0 && file.write(parts.data(), static_cast<int>(parts.size()), 0) == 0);
  CHECK(file.read(back.data(), static_cast<int>(back.size()), 0) == 0);
  for (std::size_t page = 0; page < in.count(); ++page) CHECK(in.word(page) == page + 1);
  rmdir(own.c_str());
}

TEST(every_byte_of_several_files_lies_in_its_stripe_once) {
  for (std::size_t n : {1, 2, 3}) {
    for (const SpillFile::Calls& calls : {watching, SpillFile::Calls{write_little, real.preadv, reserve_seen}}) {
      WithCalls with(calls);
      SpillFile file(std::vector<std::string>(n, spill_directory()));
      Pages out(26 * kMiB), in(26 * kMiB);
      constexpr std::uint64_t kOffset = 3 * kMiB;  // stripes end in the middle of parts
      CHECK(file.reserve(kOffset + out.memory.size()) == 0);
      for (std::size_t page = 0; page < out.count(); ++page) out.word(page) = page + 1;
      std::vector<iovec> parts = out.parts(1), back = in.parts(2);
      CHECK(file.write(parts.data(), static_cast<int>(parts.size()), kOffset) == 0);
      CHECK(file.read(back.data(), static_cast<int>(back.size()), kOffset) == 0);
      for (std::size_t page = 0; page < in.count(); ++page) CHECK(in.word(page) == page + 1);

      CHECK(seen.fds.size() == n);
      std::uint64_t written = 0;
      for (const std::vector<int>& pages : seen.writes) {
        for (int times : pages) {
          CHECK(times <= 1);
          written += times * kSmallPage;
        }
      }
      CHECK(written == out.memory.size());
      for (std::size_t page = 0; page < out.count(); ++page) {  // by a naive count: dealt out stripe by stripe
        std::uint64_t at = kOffset + page * kSmallPage, stripe = 0, place = at;
        if (n > 1) {
          for (; at >= SpillFile::kStripe; at -= SpillFile::kStripe) ++stripe;
          place = stripe / n * SpillFile::kStripe + at;
        }
        std::uint64_t found = 0;
        alignas(4096) static char buffer[kSmallPage];
        CHECK(pread(seen.fds[stripe % n], buffer, sizeof buffer, static_cast<off_t>(place)) == kSmallPage);
        std::memcpy(&found, buffer, sizeof found);
        CHECK(found == page + 1);
      }
    }
  }
}

TEST(space_is_reserved_in_every_file_for_its_stripes) {
  WithCalls with(watching);
  SpillFile file(std::vector<std::string>(3, spill_directory()));
  for (std::uint64_t asked : {kMiB, 300 * kMiB, 200 * kMiB, 700 * kMiB}) {
    CHECK(file.reserve(asked) == 0 && file.reserved() >= asked);
    std::uint64_t sum = 0;
    for (std::uint64_t bytes : seen.reserved) sum += bytes;
    CHECK(sum == file.reserved());
    for (std::uint64_t bytes : seen.reserved)
      CHECK(bytes + SpillFile::kStripe >= sum / 3 && bytes <= sum / 3 + SpillFile::kStripe);
  }
}

TEST(one_full_directory_is_named_and_may_have_room_again) {
  Directory other;
  WithCalls with(watching);
  SpillFile file({spill_directory(), other.path});
  full_nth = 2;
  CHECK(file.reserve(kMiB) == 0);  // so little needs nothing of the second
  CHECK(file.reserve(64 * kMiB) == ENOSPC);
  CHECK(file.failed() == "the spill directory " + other.path);
  CHECK(file.reserved() < 64 * kMiB);
  full_nth = 0;
  CHECK(file.reserve(64 * kMiB) == 0);

  static const SpillFile::Calls failing{fail_on_full, real.preadv, reserve_seen};
  SpillFile::calls = &failing;
  full_fd = seen.fds[1];
  Pages out(8 * kMiB);
  iovec parts[] = {{out.memory.begin(), 8 * kMiB}};
  CHECK(file.write(parts, 1, 0) == EIO);
  CHECK(file.failed() == "the spill directory " + other.path);
}

TEST(an_arena_over_two_directories_names_the_full_one_and_moves_to_both) {
  Directory other;
  Tiers::List tiers;
  tiers.push_back(std::make_unique<FileTier>(std::vector<std::string>{spill_directory(), other.path}));
  Arena& arena = make_arena(16 * kMiB, {}, std::move(tiers));
  char* a = static_cast<char*>(arena.allocate(16 * kMiB));
  std::memset(a, 1, 16 * kMiB);
  {
    WithCalls with(watching);
    full_nth = 2;
    CHECK(has(refusal_of([&] { arena.allocate(16 * kMiB); }), other.path.c_str()));
    full_nth = 0;
    char* b = static_cast<char*>(arena.allocate(16 * kMiB));
    std::memset(b, 2, 16 * kMiB);
    for (std::size_t at = 0; at < 16 * kMiB; at += kSmallPage) CHECK(a[at] == 1);
    for (std::size_t at = 0; at < 16 * kMiB; at += kSmallPage) CHECK(b[at] == 2);
    CHECK(arena.evict(a) + arena.evict(b) > 0);  // nothing is in flight any more that the watching calls would see
    CHECK(seen.fds.size() == 2 && std::ranges::max(seen.writes[0]) > 0 && std::ranges::max(seen.writes[1]) > 0);
  }
}

namespace {
int stolen = -1;  // what stands in the place of the spill file's descriptor while the call runs
ssize_t write_elsewhere(int fd, const iovec* parts, int count, off_t offset) {
  CHECK(dup2(stolen, fd) == fd);
  return pwritev(fd, parts, count, offset);
}
ssize_t read_elsewhere(int fd, const iovec* parts, int count, off_t offset) {
  CHECK(dup2(stolen, fd) == fd);
  return preadv(fd, parts, count, offset);
}
int reserve_elsewhere(int fd, int mode, off_t from, off_t more) {
  CHECK(dup2(stolen, fd) == fd);
  return fallocate(fd, mode, from, more);
}
constexpr SpillFile::Calls elsewhere{write_elsewhere, read_elsewhere, reserve_elsewhere};
}  // namespace

TEST(a_descriptor_that_becomes_another_files_while_it_is_used_is_an_error) {
  std::string directory = spill_directory();
  char* page = static_cast<char*>(aligned_alloc(kSmallPage, kSmallPage));
  std::memset(page, 7, kSmallPage);
  for (int use = 0; use < 3; ++use) {
    stolen = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(stolen >= 0 && pwrite(stolen, "other", 5, 0) == 5 && ftruncate(stolen, kMiB) == 0);
    int taken = dup(0);
    close(taken);
    SpillFile file({directory});
    CHECK(file.reserve(kMiB) == 0);
    iovec part{page, kSmallPage};
    const SpillFile::Calls* before = SpillFile::calls.exchange(&elsewhere);
    int error = use == 0 ? file.read(&part, 1, 0) : use == 1 ? file.write(&part, 1, 0) : file.reserve(1024 * kMiB);
    SpillFile::calls = before;
    CHECK(error == EBADF);
    close(stolen), close(taken);
  }
  free(page);
}

// As os.closerange does it, and as the next file that is opened then has the number.
TEST(a_descriptor_that_somebody_closed_is_an_error_and_another_file_of_its_number_is_left_alone) {
  std::string directory = spill_directory();
  char* page = static_cast<char*>(aligned_alloc(kSmallPage, kSmallPage));
  std::memset(page, 7, kSmallPage);
  iovec part;
  auto whole = [&] { return part = {page, kSmallPage}, &part; };
  int fd = dup(0), other;
  close(fd);  // the lowest that is free: the file's
  {
    SpillFile file({directory});
    CHECK(file.reserve(kMiB) == 0 && file.write(whole(), 1, 0) == 0 && file.read(whole(), 1, 0) == 0);
    close(fd);
    CHECK(file.read(whole(), 1, 0) == EBADF && file.reserve(1024 * kMiB) == EBADF);
    other = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(other == fd);
    CHECK(file.write(whole(), 1, 0) == EBADF && file.read(whole(), 1, 0) == EBADF && file.reserve(1024 * kMiB) == EBADF);
    CHECK(lseek(other, 0, SEEK_END) == 0);
  }
  CHECK(fcntl(other, F_GETFD) != -1);  // nor was it closed with the spill file
  close(other);
  free(page);
}
