// What lies in the spill file below a device's host memory: random copies at once, against a plain model, on a file that is read
// and written short, fails, or gives other bytes back.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../core/block.hpp"
#include "../core/file_tier.hpp"
#include "../core/spilled.hpp"
#include "check.hpp"

using namespace ebbtide;

namespace {

const SpillFile::Calls real = *SpillFile::calls;
std::atomic<unsigned> calls_seen{0};
std::atomic<int> failing_write{0}, failing_reads{0}, changed_reads{0};  // so many more
std::atomic<bool> is_full{false};

bool once(std::atomic<int>& left) {
  int n = left.load();
  while (n > 0) {
    if (left.compare_exchange_weak(n, n - 1)) return true;
  }
  return false;
}
iovec shortened(const iovec& part) {
  return {part.iov_base, std::min<std::size_t>(part.iov_len, kSmallPage * (1 + calls_seen++ % 7))};
}
ssize_t write_short(int fd, const iovec* parts, int, off_t offset) {
  if (once(failing_write)) {
    errno = EIO;
    return -1;
  }
  iovec part = shortened(*parts);
  return real.pwritev(fd, &part, 1, offset);
}
ssize_t read_short(int fd, const iovec* parts, int, off_t offset) {
  if (once(failing_reads)) {
    errno = EIO;
    return -1;
  }
  iovec part = shortened(*parts);
  ssize_t n = real.preadv(fd, &part, 1, offset);
  if (n > 0 && offset == 0 && once(changed_reads)) static_cast<char*>(part.iov_base)[n / 2] ^= 1;
  return n;
}
int reserve_or_full(int fd, int mode, off_t offset, off_t bytes) {
  if (is_full) {
    errno = ENOSPC;
    return -1;
  }
  return real.fallocate(fd, mode, offset, bytes);
}
constexpr SpillFile::Calls odd{write_short, read_short, reserve_or_full};

struct WithOddCalls {
  const SpillFile::Calls* before = SpillFile::calls;
  WithOddCalls() { SpillFile::calls = &odd; }
  ~WithOddCalls() {
    SpillFile::calls = before;
    is_full = false;
    CHECK(failing_write == 0 && failing_reads == 0 && changed_reads == 0);
  }
};

struct Memory {
  Reservation pages;
  explicit Memory(std::size_t bytes) : pages(bytes, kSmallPage, PROT_READ | PROT_WRITE) {}
  char* begin() const { return pages.begin(); }
};

const std::vector<std::string> kHere{spill_directory()};

}  // namespace

TEST(spilled_copies_come_back_whatever_is_under_way_beside_them) {
  WithOddCalls with;
  Spilled spilled(kHere, 2);
  struct Kept {
    Extent extent;
    std::size_t nbytes;
    unsigned seed;
    Memory memory{extent.bytes};
    Spilled::Handle handle = nullptr;
    bool comes = false;
  };
  std::vector<std::unique_ptr<Kept>> kept;
  std::mt19937 random(11);
  std::uint64_t used = 0, came = 0;
  auto end = [&](Kept& copy) {
    CHECK(spilled.wait(copy.handle) == 0);
    CHECK(spilled.has_ended(copy.handle));
    if (copy.comes) {
      CHECK(filled(copy.memory.begin(), copy.nbytes, copy.seed));
      ++came;
    }
    std::memset(copy.memory.begin(), 0xee, copy.nbytes);  // it is others' now
    copy.handle = nullptr;
    copy.comes = false;
  };
  for (unsigned step = 0; step < 600; ++step) {
    if (kept.size() < 12) {
      std::size_t nbytes =
          (1 + random() % 8) * (random() % 4 == 0 ? std::size_t{900} << 10 : std::size_t{4} << 10) + random() % 9 * 512;
      auto extent = spilled.reserve(nbytes);
      CHECK(extent && extent->bytes >= nbytes && extent->bytes < nbytes + kSmallPage);
      for (const auto& other : kept) {
        CHECK(extent->begin >= other->extent.begin + other->extent.bytes || extent->begin + extent->bytes <= other->extent.begin);
      }
      used += extent->bytes;
      kept.emplace_back(new Kept{*extent, nbytes, step});
      Kept& copy = *kept.back();
      auto ready = std::make_shared<std::atomic<bool>>(false);
      copy.handle = spilled.write(copy.extent, copy.memory.begin(), [ready] {
        while (!*ready) std::this_thread::yield();
      });
      fill(copy.memory.begin(), nbytes, step);  // no thread may look before
      *ready = true;
    } else {
      Kept& copy = *kept[random() % kept.size()];
      if (copy.handle != nullptr) {
        end(copy);
      } else {
        copy.comes = true;
        copy.handle = spilled.read(copy.extent, copy.memory.begin(), [] {});
      }
    }
    if (random() % 5 == 0 && !kept.empty()) {
      std::size_t which = random() % kept.size();
      if (kept[which]->handle != nullptr) end(*kept[which]);
      spilled.release(kept[which]->extent);
      used -= kept[which]->extent.bytes;
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(which));
    }
    CHECK(spilled.used() == used && spilled.peak() >= used);
  }
  CHECK(came > 20);
  for (const auto& copy : kept) {
    if (copy->handle != nullptr) end(*copy);
  }
}

TEST(what_is_awaited_goes_first_and_who_reads_waits_for_no_write) {
  Spilled spilled(kHere, 1);
  Memory memory(4 * kMiB);
  std::atomic<bool> go{false};
  std::atomic<int> order{0}, first{0}, last{0};
  auto at = [&](std::size_t i) { return memory.begin() + i * kMiB; };
  std::vector<Extent> extents;
  for (int i = 0; i < 4; ++i) extents.push_back(*spilled.reserve(kMiB));
  auto stuck = spilled.write(extents[0], at(0), [&] {
    while (!go) std::this_thread::yield();
  });
  auto second = spilled.write(extents[1], at(1), [&] { last = ++order; });
  auto third = spilled.write(extents[2], at(2), [&] { first = ++order; });
  auto back = spilled.read(extents[3], at(3), [] {});
  CHECK(spilled.wait(back) == EIO || spilled.has_ended(back));  // of what was never written: it ends anyway
  CHECK(!spilled.has_ended(stuck));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    go = true;
  });
  CHECK(spilled.wait(third) == 0);
  later.join();
  CHECK(spilled.wait(second) == 0 && first == 1 && last == 2);
  CHECK(spilled.wait(stuck) == 0);
}

TEST(a_disk_that_fails_is_told_and_tried_again_where_it_is_read) {
  WithOddCalls with;
  Spilled spilled(kHere, 2);
  Memory memory(kMiB);
  Extent extent = *spilled.reserve(kMiB);
  failing_write = 1;
  CHECK(spilled.wait(spilled.write(extent, memory.begin(), [] {})) == EIO);
  CHECK(spilled.failure(EIO).find(spill_directory()) != std::string::npos);
  fill(memory.begin(), kMiB, 5);
  CHECK(spilled.wait(spilled.write(extent, memory.begin(), [] {})) == 0);
  for (std::atomic<int>* trouble : {&failing_reads, &changed_reads}) {
    *trouble = kReadTries - 1;
    std::memset(memory.begin(), 0, kMiB);
    CHECK(spilled.wait(spilled.read(extent, memory.begin(), [] {})) == 0);
    CHECK(filled(memory.begin(), kMiB, 5));
    *trouble = kReadTries;
    CHECK(spilled.wait(spilled.read(extent, memory.begin(), [] {})) == (trouble == &failing_reads ? EIO : EBADMSG));
  }
}

TEST(a_full_disk_gives_no_place_and_takes_nothing) {
  WithOddCalls with;
  Spilled spilled(kHere, 1);
  is_full = true;
  CHECK(!spilled.reserve(kMiB) && spilled.error() == ENOSPC && spilled.used() == 0);
  is_full = false;
  auto extent = spilled.reserve(kMiB);
  CHECK(extent && extent->begin == 0);
  CHECK(!spilled.reserve(std::uint64_t{3} << 40) && spilled.used() == kMiB);  // more than any file of it
}

TEST(what_is_under_way_ends_before_its_file_does) {
  Memory memory(8 * kMiB);
  fill(memory.begin(), 8 * kMiB, 3);
  std::atomic<int> begun{0};
  {
    Spilled spilled(kHere, 2);
    for (std::size_t i = 0; i < 8; ++i) spilled.write(*spilled.reserve(kMiB), memory.begin() + i * kMiB, [&] { ++begun; });
  }
  CHECK(begun == 8);
}
