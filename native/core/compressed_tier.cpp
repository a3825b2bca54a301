#include "compressed_tier.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "block.hpp"

namespace ebbtide {

namespace {
constexpr std::uint64_t kBlock = Codec::kBlock;
constexpr std::uint64_t kMostCapacity = std::uint64_t{1} << 38;  // so that the pool has at most 2^38 units of 8 bytes
constexpr std::array<std::uint64_t, kRegions> kRegionBytes{std::uint64_t{1} << 40, std::uint64_t{1} << 38};
// What blocks begin at: chunks begin at huge pages, or at any small one.
constexpr std::array<std::uint64_t, kRegions> kSlot{kBlock, kSmallPage};
constexpr unsigned kAreas = 32;
constexpr std::uint64_t kArea = 2 * kBlock;  // to pack in, and for a block of a sample
constexpr std::uint64_t kSampled = 16;                     // of so many blocks one is looked at
constexpr std::uint64_t kStride = 5;                       // and of the next ones that which lies so much further on
constexpr std::uint64_t kSlack = 2 * kBlock;  // so much more than its share is packed before a chunk is refused
constexpr std::uint64_t kRemembered = std::uint64_t{1} << 30;  // bytes by which it is judged how well contents shrink

std::uint64_t checked(std::uint64_t capacity) {
  if (capacity < kSmallPage || capacity > kMostCapacity) throw ArenaError("compressed memory has from 4 KiB to 256 GiB");
  return capacity / kSmallPage * kSmallPage;
}
std::uint64_t pool_bytes(std::uint64_t capacity) { return 4 * capacity + (std::uint64_t{1} << 30); }
constexpr std::uint32_t pages_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kSmallPage - 1) / kSmallPage);
}
}  // namespace

struct CompressedTier::Flags {
  std::atomic<bool> runs;
  std::atomic<bool> areas[kAreas];
};

class CompressedTier::Spin {
 public:
  explicit Spin(const CompressedTier& tier) : flag_(reinterpret_cast<Flags*>(tier.flags_.begin())->runs) {
    while (flag_.exchange(true, std::memory_order_acquire)) sched_yield();
  }
  ~Spin() { flag_.store(false, std::memory_order_release); }
  Spin(const Spin&) = delete;
  Spin& operator=(const Spin&) = delete;

 private:
  std::atomic<bool>& flag_;
};

// What a thread packs or unpacks in. Whoever has one waits for nobody.
class CompressedTier::Area {
 public:
  explicit Area(const CompressedTier& tier) : flags_(*reinterpret_cast<Flags*>(tier.flags_.begin())) {
    for (;; number_ = (number_ + 1) % kAreas) {
      if (!flags_.areas[number_].exchange(true, std::memory_order_acquire)) break;
      if (number_ == kAreas - 1) sched_yield();
    }
    begin_ = tier.areas_.begin() + number_ * kArea;
  }
  ~Area() { flags_.areas[number_].store(false, std::memory_order_release); }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  char* begin() const { return begin_; }

 private:
  Flags& flags_;
  unsigned number_ = 0;
  char* begin_;
};

CompressedTier::CompressedTier(std::uint64_t capacity)
    : capacity_(checked(capacity)),
      pool_(pool_bytes(capacity_) + kBlock, kHugePage, PROT_READ | PROT_WRITE),  // unpacking looks a little ahead
      table_{Reservation(kRegionBytes[0] / kSlot[0] * sizeof(Entry), kSmallPage, PROT_READ | PROT_WRITE),
             Reservation(kRegionBytes[1] / kSlot[1] * sizeof(Entry), kSmallPage, PROT_READ | PROT_WRITE)},
      flags_(kSmallPage, kSmallPage, PROT_READ | PROT_WRITE),
      areas_(kAreas * kArea, kSmallPage, PROT_READ | PROT_WRITE),
      free_(static_cast<std::uint32_t>(pool_bytes(capacity_) / kSmallPage)) {
  madvise(pool_.begin(), pool_.size(), MADV_NOHUGEPAGE);  // a huge page would stay for its last small one
  for (const Reservation& table : table_) madvise(table.begin(), table.size(), MADV_NOHUGEPAGE);
  set_inherited(flags_.begin(), flags_.size(), false);
  set_inherited(areas_.begin(), areas_.size(), false);
  free_.give({0, static_cast<std::uint32_t>(pool_bytes(capacity_) / kSmallPage)});
}

Failure CompressedTier::explain(int error) const {
  constexpr const char* kWhere = "compressed memory";
  switch (error) {
    case EFBIG:
      return {kWhere, "what does not shrink needs a slower tier behind it"};
    case ENOSPC:
      return {kWhere, "give it more room, or a slower tier behind it"};
    default:
      return {kWhere, "other bytes lie in memory than were written there: its cells may be failing"};
  }
}

// --- runs of the pool

Run CompressedTier::take_run(std::uint32_t pages) {
  Spin spin(*this);
  Run run = free_.take(pages);
  if (run.count == pages || run.count == 0) return run;
  free_.give(run);
  return {};
}

// The first `touched` of its pages have memory.
void CompressedTier::give_run(Run run, std::uint32_t touched) {
  if (touched > 0) must_drop_pages(pool_.begin() + run.first * kSmallPage, touched * kSmallPage);
  if (run.count == 0) return;
  Spin spin(*this);
  free_.give(run);
}

// --- space

bool CompressedTier::claim(std::uint64_t bytes) {
  std::uint64_t used = used_;
  while (used + bytes <= capacity_) {
    if (!used_.compare_exchange_weak(used, used + bytes)) continue;
    for (std::uint64_t peak = peak_; peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes););
    return true;
  }
  return false;
}

int CompressedTier::reserve(const Extent& extent) {
  if (extent.begin + extent.bytes > kRegionBytes[extent.region]) return ENOSPC;
  std::uint64_t seen = seen_, expected = 0;
  if (seen > 0)
    expected =
        static_cast<std::uint64_t>(static_cast<double>(extent.bytes) * static_cast<double>(kept_) / static_cast<double>(seen));
  return used_ + expected > capacity_ ? ENOSPC : 0;
}

void CompressedTier::release(const Extent& extent) {
  for (std::uint64_t at = 0; at < extent.bytes; at += kChunk) {
    forget({extent.region, extent.begin + at, std::min<std::uint64_t>(kChunk, extent.bytes - at)});
  }
}

void CompressedTier::forget(const Extent& chunk) {
  std::uint64_t begin = 0, end = 0;
  for (std::uint64_t at = 0; at < chunk.bytes; at += kBlock) {
    Entry& e = entry(chunk.region, (chunk.begin + at) / kSlot[chunk.region]);
    if (e.form == 0) continue;  // untouched memory stays so
    if (at == 0) begin = e.at * 8;
    end = e.at * 8 + e.bytes;
    e = {};
  }
  Run run{static_cast<Slot>(begin / kSmallPage), pages_of(end - begin)};
  if (run.count == 0) return;
  give_run(run, run.count);
  used_ -= run.count * kSmallPage;
}

// --- in

int CompressedTier::write(const Extent& chunk, const void* from) {
  forget(chunk);
  Run run = take_run(pages_of(chunk.bytes));
  if (run.count == 0) return ENOSPC;
  std::uint64_t bytes = 0;
  int error = pack(chunk, static_cast<const char*>(from), run, bytes);
  std::uint32_t pages = pages_of(bytes);
  if (error == 0 && pages * kSmallPage > Codec::most_of(chunk.bytes)) error = EFBIG;
  if (error == 0 && !claim(pages * kSmallPage)) error = ENOSPC;
  if (error == 0) {
    give_run({run.first + pages, run.count - pages}, 0);
    count_ratio(chunk.bytes, pages * kSmallPage);
    return 0;
  }
  for (std::uint64_t at = 0; at < chunk.bytes; at += kBlock) entry(chunk.region, (chunk.begin + at) / kSlot[chunk.region]) = {};
  give_run(run, std::min(pages + 1, run.count));
  return error;
}

// Block after block into the run. Of an error, `bytes` are those that the run got.
int CompressedTier::pack(const Extent& chunk, const char* from, Run run, std::uint64_t& bytes) {
  Area area(*this);
  char* to = pool_.begin() + run.first * kSmallPage;
  for (std::uint64_t at = 0; at < chunk.bytes; at += kBlock) {
    std::uint64_t block = std::min(kBlock, chunk.bytes - at);
    Codec::Packed packed = codec_.pack(from + at, block, to + bytes, area.begin());
    entry(chunk.region, (chunk.begin + at) / kSlot[chunk.region]) = {
        .form = static_cast<std::uint64_t>(packed.form),
        .pages = pages_of(block),
        .bytes = packed.bytes,
        .at = (run.first * kSmallPage + bytes) / 8,
    };
    bytes += round_up(packed.bytes, 8);
    if (bytes > Codec::most_of(at + block) + kSlack) return EFBIG;
    if (used_ + bytes > capacity_) return ENOSPC;
  }
  return 0;
}

// Roughly, where several threads do it.
void CompressedTier::count_ratio(std::uint64_t from, std::uint64_t to) {
  kept_ += to;
  if (seen_.fetch_add(from) + from < kRemembered) return;
  seen_ = seen_ / 2;
  kept_ = kept_ / 2;
}

// --- a sample

std::optional<std::uint64_t> CompressedTier::packed_bytes(const void* from, std::uint64_t bytes) const {
  Area area(*this);
  std::uint64_t all = 0;
  for (std::uint64_t begin = 0; begin < bytes; begin += kChunk) {
    const std::uint64_t chunk = std::min<std::uint64_t>(kChunk, bytes - begin);
    std::uint64_t looked_at = 0, taken = 0;
    for (std::uint64_t some = 0; some < chunk; some += kSampled * kBlock) {
      std::uint64_t blocks = std::min(kSampled, (chunk - some + kBlock - 1) / kBlock);
      std::uint64_t at = some + (begin + some) / (kSampled * kBlock) * kStride % blocks * kBlock;
      std::uint64_t block = std::min(kBlock, chunk - at);
      const char* sample = static_cast<const char*>(from) + begin + at;
      taken += round_up(codec_.pack(sample, block, area.begin() + kBlock, area.begin()).bytes, 8);
      looked_at += block;
    }
    double share = static_cast<double>(taken) / static_cast<double>(looked_at);
    std::uint64_t packed = pages_of(static_cast<std::uint64_t>(static_cast<double>(chunk) * share)) * kSmallPage;
    if (packed > Codec::most_of(chunk)) return std::nullopt;
    all += packed;
  }
  return all;
}

// --- back

int CompressedTier::read(const Extent& part, iovec* parts, int count) const {
  const std::uint64_t slot = kSlot[part.region];
  for (std::uint64_t at = part.begin, end = part.begin + part.bytes; at < end;) {
    std::uint64_t begin = at / slot * slot;
    while (entry(part.region, begin / slot).form == 0) {  // a part may begin within a block
      if (begin < slot || at - (begin - slot) >= kBlock) return EIO;
      begin -= slot;
    }
    const Entry& e = entry(part.region, begin / slot);
    if (at >= begin + e.pages * kSmallPage) return EIO;
    std::uint64_t bytes = std::min(begin + e.pages * kSmallPage, end) - at;
    if (int error = read_part(e, at - begin, bytes, parts, count); error != 0) return error;
    at += bytes;
  }
  return 0;
}

bool CompressedTier::unpack(const Entry& e, void* to) const {
  return codec_.unpack(e.packed(), pool_.begin() + e.at * 8, to, e.pages * kSmallPage);
}

// Bytes of a block into the parts, which are used up as far.
int CompressedTier::read_part(const Entry& e, std::uint64_t from, std::uint64_t bytes, iovec*& parts, int& count) const {
  auto advance = [&](std::uint64_t n) {
    parts->iov_base = static_cast<char*>(parts->iov_base) + n;
    parts->iov_len -= n;
    for (; count > 0 && parts->iov_len == 0; --count) ++parts;
  };
  if (count > 0 && bytes == e.pages * kSmallPage && parts->iov_len >= bytes) {  // the whole block, to one place
    if (!unpack(e, parts->iov_base)) return EBADMSG;
    advance(bytes);
    return 0;
  }
  Area area(*this);
  if (!unpack(e, area.begin())) return EBADMSG;
  while (bytes > 0) {
    if (count == 0) return EINVAL;
    std::uint64_t n = std::min<std::uint64_t>(bytes, parts->iov_len);
    std::memcpy(parts->iov_base, area.begin() + from, n);
    advance(n);
    from += n;
    bytes -= n;
  }
  return 0;
}

}  // namespace ebbtide
