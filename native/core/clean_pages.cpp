// A hunt for pages that are lost, or change, while a storage is clean in memory (EBBTIDE_CHECKSUM=pages).
//
// A slower tier has the same bytes as a clean block, and the checksums of what was written there. So a random chunk of a
// random clean block is compared with its checksum now and then. The kernel copies the bytes: under the mutex no fault may
// happen [Note: invariants, I5], and a page that is gone is an errno then.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>

#include "arena.hpp"

namespace ebbtide {

namespace {

constexpr std::size_t kAtOnce = 16 << 10;  // of stack

// 0, or the errno of why these bytes of this process cannot be read.
int add_bytes(Checksum& sum, const char* from, std::size_t bytes) {
  alignas(64) char copy[kAtOnce];
  for (std::size_t at = 0, part; at < bytes; at += part) {
    part = std::min(kAtOnce, bytes - at);
    iovec here{copy, part}, there{const_cast<char*>(from + at), part};
    ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (n != static_cast<ssize_t>(part)) return n < 0 ? errno : EFAULT;
    sum.add(copy, part);
  }
  return 0;
}

}  // namespace

void Arena::set_checksum(bool on, bool pages) {
  Lock lock(mutex_);
  tiers_.set_checksum(on);
  checks_pages_ = pages;
}

bool Arena::look_at_clean_pages() {
  Lock lock(mutex_);
  return look_at_clean_pages(lock);
}

bool Arena::look_at_clean_pages(Lock&) {
  auto random = [this] {  // splitmix64
    std::uint64_t x = (page_checks_ += 0x9E3779B97F4A7C15ull);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  };
  const auto live = blocks_.live();
  const std::size_t first = live.empty() ? 0 : random() % live.size();
  for (std::size_t i = 0; i < live.size(); ++i) {
    const Block& b = blocks_[live[(first + i) % live.size()]];
    if (b.state != State::Clean || b.valid == 0) continue;
    std::uint64_t begin = random() % ((moved_bytes(b) + kChunk - 1) / kChunk) * kChunk;
    Extent chunk = memory_.extent(b, begin, std::min<std::uint64_t>(kChunk, moved_bytes(b) - begin));
    std::uint32_t expected = tiers_.written_checksum(static_cast<Rank>(std::countr_zero(b.valid)), chunk);
    if (expected == 0) continue;  // it was written before they were switched on
    Checksum sum;
    int error = add_bytes(sum, b.address + begin, chunk.bytes);
    if (error == 0 && sum.value() == expected) return true;
    if (error == EPERM || error == ENOSYS) {
      checks_pages_ = false;
      say("this system lets no process copy its own memory (process_vm_readv): EBBTIDE_CHECKSUM=pages compares what moves alone");
      return false;
    }
    char what[400];
    std::snprintf(what, sizeof what,
                  "comparing a clean storage in memory with what was written (%s of a storage of %s, from byte %llu on: a page "
                  "is lost or has changed; go on from a checkpoint, test the machine's memory, and report the kernel's version)",
                  BytesText(chunk.bytes).text, BytesText(b.nbytes).text, static_cast<unsigned long long>(begin));
    fatal(what, error != 0 ? error : EBADMSG);
  }
  return false;
}

}  // namespace ebbtide
