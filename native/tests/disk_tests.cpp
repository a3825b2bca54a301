// A disk that is full, fails or transfers in pieces: nothing is lost.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <vector>

#include "../core/file_tier.hpp"
#include "check.hpp"
#include "mock_tier.hpp"
#include "numa_ground.hpp"

using namespace ebbtide;

namespace {
std::atomic<int> errors_left{0};
std::atomic<int> error_given{0};
const SpillFile::Calls real = *SpillFile::calls;
template <auto call>
ssize_t failing(int fd, const iovec* parts, int count, off_t offset) {
  if (errors_left.load() != 0 && errors_left.fetch_sub(1) > 0) {
    errno = error_given;
    return -1;
  }
  return (real.*call)(fd, parts, count, offset);
}
template <auto call>
ssize_t in_pieces(int fd, const iovec* parts, int, off_t offset) {
  iovec piece = {parts->iov_base, std::min<std::size_t>(parts->iov_len, 4096 * 3)};
  return (real.*call)(fd, &piece, 1, offset);
}
struct WithCalls {
  const SpillFile::Calls* before = SpillFile::calls;
  explicit WithCalls(SpillFile::Calls calls) {
    static std::vector<std::unique_ptr<SpillFile::Calls>> all;  // kept: a thread may still be in them
    all.push_back(std::make_unique<SpillFile::Calls>(calls));
    SpillFile::calls = all.back().get();
  }
  ~WithCalls() { SpillFile::calls = before; }
};
}  // namespace

TEST(a_failed_write_keeps_the_block_and_fails_the_allocation_that_needed_the_room) {
  Arena& arena = make_arena(16 * kMiB);
  char* a = filled_block(arena, 8 * kMiB, 1);
  char* b = filled_block(arena, 8 * kMiB, 2);
  {
    WithCalls calls({failing<&SpillFile::Calls::pwritev>, real.preadv, real.fallocate});
    error_given = ENOSPC;
    errors_left = 1 << 30;
    CHECK(arena.evict(a) == 0 && arena.state(a) == State::Dirty);
    CHECK(has(refusal_of([&] { arena.allocate(8 * kMiB); }), "No space left"));
    CHECK(arena.evict(a) == 0 && arena.evict(b) == 0);  // after what the allocation began: no failure is still to come
    errors_left = 0;
  }
  arena.check_invariants();
  char* c = filled_block(arena, 8 * kMiB, 3);  // the disk has room again
  CHECK(filled(a, 8 * kMiB, 1) && filled(b, 8 * kMiB, 2) && filled(c, 8 * kMiB, 3));
}

TEST(a_full_disk_is_an_error_before_anything_is_evicted) {
  Arena& arena = make_arena(8 * kMiB);
  char* a = filled_block(arena, 8 * kMiB, 1);
  WithCalls calls({real.pwritev, real.preadv, [](int, int, off_t, off_t) {
                     errno = ENOSPC;
                     return -1;
                   }});
  CHECK(has(refusal_of([&] { arena.allocate(8 * kMiB); }), "cannot reserve"));
  CHECK(filled(a, 8 * kMiB, 1) && arena.counters().live == 8 * kMiB);
}

TEST(what_died_leaves_its_space_on_a_full_disk) {
  WithCalls calls({real.pwritev, real.preadv, [](int fd, int mode, off_t offset, off_t bytes) {
                     if (static_cast<std::uint64_t>(offset + bytes) <= 40 * kMiB) return real.fallocate(fd, mode, offset, bytes);
                     errno = ENOSPC;
                     return -1;
                   }});
  Arena& arena = make_arena(8 * kMiB);
  std::vector<char*> all;
  auto fill_one = [&] { all.push_back(filled_block(arena, 8 * kMiB, static_cast<unsigned>(all.size()))); };
  while (!has(refusal_of(fill_one), "cannot reserve")) {}
  CHECK(all.size() >= 4);
  for (unsigned i = 1; i < all.size(); ++i) arena.release(all[i]);
  char* smaller = filled_block(arena, 16 * kMiB, 5);  // as whoever finds a batch that fits
  CHECK(filled(all[0], 8 * kMiB, 0) && filled(smaller, 16 * kMiB, 5));
}

TEST(a_full_disk_is_not_asked_at_the_end_of_every_operator) {
  Arena& arena = make_arena(0);
  char* a = filled_block(arena, 8 * kMiB, 1);
  char* b = filled_block(arena, 8 * kMiB, 2);
  static std::atomic<int> asked;
  asked = 0;
  constexpr int kOperators = 2000;
  {
    WithCalls calls({real.pwritev, real.preadv, [](int, int, off_t, off_t) {
                       ++asked;
                       errno = ENOSPC;
                       return -1;
                     }});
    arena.set_limits(8 * kMiB, 0);
    for (int i = 0; i < kOperators; ++i) {
      arena.enter("operator", {}, Work::Itself);
      arena.exit();
    }
    CHECK(asked > 0 && asked < kOperators);
    int before = asked;
    CHECK(has(refusal_of([&] { arena.allocate(8 * kMiB); }), "cannot reserve"));
    CHECK(asked > before);
  }
  CHECK(filled(a, 8 * kMiB, 1) && filled(b, 8 * kMiB, 2));
  char* c = filled_block(arena, 8 * kMiB, 3);  // the disk has room again
  CHECK(filled(a, 8 * kMiB, 1) && filled(b, 8 * kMiB, 2) && filled(c, 8 * kMiB, 3));
}

// As ext4 does it: what it got before the disk was full stays the file's.
TEST(what_a_full_disk_gave_of_a_large_request_is_given_back_before_a_smaller_one) {
  static std::vector<off_t> sizes;  // of the file, at each request
  sizes.clear();
  static const SpillFile::Calls greedy{real.pwritev, real.preadv, [](int fd, int mode, off_t from, off_t bytes) {
                                         struct stat it;
                                         CHECK(fstat(fd, &it) == 0);
                                         sizes.push_back(it.st_size);
                                         constexpr off_t kFree = 8 << 20;
                                         if (from + bytes <= kFree) return real.fallocate(fd, mode, from, bytes);
                                         CHECK(real.fallocate(fd, mode, from, kFree - from) == 0);
                                         errno = ENOSPC;
                                         return -1;
                                       }};
  WithCalls calls(greedy);
  SpillFile file({spill_directory()});
  CHECK(file.reserve(2 * kMiB) == 0 && file.reserved() == 2 * kMiB);
  CHECK(file.reserve(16 * kMiB) == ENOSPC && file.reserved() == 2 * kMiB);
  CHECK(file.reserve(4 * kMiB) == 0 && file.reserved() == 4 * kMiB);
  CHECK((sizes == std::vector<off_t>{0, 0, 2 << 20, 2 << 20, 2 << 20, 2 << 20}));
}

TEST(a_full_disk_is_no_error_where_a_tier_before_it_holds_all) {
  if (no_numa()) return;
  NumaGround ground(16 * kMiB, 32 * kMiB);
  WithCalls calls({real.pwritev, real.preadv, [](int, int, off_t, off_t) {
                     errno = ENOSPC;
                     return -1;
                   }});
  std::vector<void*> all;
  for (unsigned i = 0; i < 4; ++i) all.push_back(filled_block(*ground.arena, 8 * kMiB, i));
  std::string said = refusal_of([&] { ground.arena->allocate(8 * kMiB); });
  CHECK(has(said, "in the spill directory /") && has(said, "free space there"));
  for (unsigned round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < 4; ++i) {
      CHECK(filled(all[i], 8 * kMiB, i + round));
      fill(all[i], 8 * kMiB, i + round + 1);
    }
  }
  CHECK(!ground.arena->counters().over_budget && ground.tier->space().used > 0);
}

TEST(where_a_full_tier_refuses_what_was_written_what_it_has_already_goes) {
  Tiers::List tiers;
  tiers.push_back(std::make_unique<MockTier>(Behaviour{.capacity = 8 * kMiB}));
  Arena& arena = make_arena(40 * kMiB, {}, std::move(tiers));
  std::vector<void*> written;
  for (unsigned i = 0; i < 4; ++i) written.push_back(filled_block(arena, 8 * kMiB, i));
  char* clean = filled_block(arena, 8 * kMiB, 4);
  CHECK(arena.evict(clean) == 8 * kMiB && arena.fetch(clean) == 0 && filled(clean, 8 * kMiB, 4));
  for (int i = 0; i < 100; ++i) arena.prefetch(std::vector<Operand>{{clean}});  // used last: it would stay
  char* last = filled_block(arena, 8 * kMiB, 5);
  CHECK(arena.state(clean) == State::Absent && !arena.counters().over_budget);
  for (unsigned i = 0; i < 4; ++i) CHECK(arena.state(written[i]) == State::Dirty && filled(written[i], 8 * kMiB, i));
  CHECK(filled(clean, 8 * kMiB, 4) && filled(last, 8 * kMiB, 5));
}

TEST(a_read_error_is_retried_then_reported_and_the_file_copy_stays) {
  Arena& arena = make_arena(0);
  char* p = filled_block(arena, 2 * kMiB, 1);
  arena.evict(p);
  WithCalls calls({real.pwritev, failing<&SpillFile::Calls::preadv>, real.fallocate});
  error_given = EIO;
  errors_left = 2;
  CHECK(arena.fetch(p) == 0);  // the third try
  CHECK(filled(p, 2 * kMiB, 1));
  arena.evict(p);
  errors_left = 1 << 30;
  CHECK(arena.fetch(p) == EIO && arena.state(p) == State::Absent);
  errors_left = 0;
  CHECK(arena.fetch(p) == 0 && filled(p, 2 * kMiB, 1));
}

TEST(short_transfers_are_continued) {
  Arena& arena = make_arena(0);
  WithCalls calls({in_pieces<&SpillFile::Calls::pwritev>, in_pieces<&SpillFile::Calls::preadv>, real.fallocate});
  for (std::size_t n : {64 * std::size_t{1024}, 5 * kMiB}) {
    char* p = filled_block(arena, n, 9);
    CHECK(arena.evict(p) > 0 && filled(p, n, 9));
  }
}

namespace {
// The nth read from now on brings back another bit, in its last byte; -1: every one does.
std::atomic<int> flip_in{0};
ssize_t read_flipped(int fd, const iovec* parts, int count, off_t offset) {
  ssize_t n = real.preadv(fd, parts, count, offset);
  int left = flip_in.load();
  if (left > 0) left = flip_in.fetch_sub(1);
  if (left == 1 || left == -1) {
    iovec last = parts[count - 1];
    static_cast<char*>(last.iov_base)[last.iov_len - 1] ^= 1;
  }
  return n;
}
// Writes that go astray by a page, or nowhere, and say that they went well.
ssize_t write_astray(int fd, const iovec* parts, int count, off_t offset) {
  return real.pwritev(fd, parts, count, offset + static_cast<off_t>(kSmallPage));
}
ssize_t write_nowhere(int, const iovec* parts, int count, off_t) {
  ssize_t n = 0;
  for (int i = 0; i < count; ++i) n += static_cast<ssize_t>(parts[i].iov_len);
  return n;
}
// Its last page does not arrive.
ssize_t write_torn(int fd, const iovec* parts, int count, off_t offset) {
  std::vector<iovec> most(parts, parts + count);
  most.back().iov_len -= kSmallPage;
  ssize_t n = real.pwritev(fd, most.data(), count, offset);
  return n < 0 ? n : n + static_cast<ssize_t>(kSmallPage);
}
constexpr std::size_t kSizes[] = {std::size_t{20} << 10, 8 * kMiB,
                                  9 * kMiB + 4096};  // of small and of huge pages, several chunks
}  // namespace

TEST(one_flipped_bit_is_read_again_and_many_are_an_error) {
  Arena& arena = make_arena(0);
  for (std::size_t n : kSizes) {
    char* p = filled_block(arena, n, 5);
    CHECK(arena.evict(p) > 0);
    WithCalls calls({real.pwritev, read_flipped, real.fallocate});
    flip_in = n > kMiB ? 2 : 1;  // not the first chunk
    CHECK(arena.fetch(p) == 0 && flip_in == 0 && filled(p, n, 5));
    CHECK(arena.evict(p) > 0);  // clean: without a write, so under the same checksum
    flip_in = -1;
    CHECK(arena.fetch(p) == EBADMSG && arena.state(p) == State::Absent);
    flip_in = 0;
    CHECK(arena.fetch(p) == 0 && filled(p, n, 5));
    arena.check_invariants();
  }
}

TEST(writes_that_are_lost_or_torn_or_go_astray_are_seen) {
  for (std::size_t n : kSizes) {
    for (auto write : {write_astray, write_nowhere, write_torn}) {
      Arena& arena = make_arena(0);
      char* p = filled_block(arena, n, 6);
      CHECK(arena.evict(p) > 0);  // so that the file holds something
      fill(p, n, 7);
      {
        WithCalls calls({write, real.preadv, real.fallocate});
        CHECK(arena.evict(p) > 0);
      }
      CHECK(arena.fetch(p) == EBADMSG);
      arena.set_checksum(false);
      CHECK(arena.fetch(p) == 0 && !filled(p, n, 7));  // as it would have been
    }
  }
}

TEST(what_left_without_a_checksum_comes_back_without_one) {
  Arena& arena = make_arena(0);
  arena.set_checksum(false);
  char* p = filled_block(arena, 8 * kMiB, 8);
  CHECK(arena.evict(p) > 0);
  arena.set_checksum(true);
  CHECK(arena.fetch(p) == 0 && filled(p, 8 * kMiB, 8));
}
