#include "spilled.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "block.hpp"
#include "file_tier.hpp"
#include "system.hpp"

namespace ebbtide {

namespace {

constexpr unsigned kRegion = 1;  // of small pages
constexpr Rank kFile = 1;
constexpr std::uint64_t kMost = std::uint64_t{2} << 40;  // bytes of the file

Tiers::List file_in(const std::vector<std::string>& directories) {
  Tiers::List tiers;
  tiers.push_back(std::make_unique<FileTier>(directories));
  return tiers;
}

}  // namespace

class Spilled::Copy {
 public:
  Copy(Way way, const Extent& extent, char* memory, std::function<void()> before)
      : way(way), extent(extent), memory(memory), before(std::move(before)) {}

  const Way way;
  const Extent extent;
  char* const memory;
  const std::function<void()> before;
  std::uint64_t taken = 0, ended = 0;  // bytes
  int error = 0;

  bool has_ended() const { return ended == extent.bytes; }
};

Spilled::Spilled(const std::vector<std::string>& directories, unsigned threads)
    : tiers_(file_in(directories), {kHugePage, kMost}), free_(kMost / kSmallPage) {
  free_.give({0, kMost / kSmallPage});
  try {
    for (unsigned i = 0; i < threads; ++i) {
      for (Way way : {Out, Back}) threads_.emplace_back([this, way] { carry_out(way); });
    }
  } catch (const std::system_error& error) {
    stop();
    throw ArenaError(std::string("cannot start threads for the spill file: ") + error.what() +
                     "; lift the limit on processes (RLIMIT_NPROC, ulimit -u), or name fewer (EBBTIDE_IO_THREADS)");
  }
}

Spilled::~Spilled() { stop(); }

void Spilled::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    for (Lane& lane : lanes_) lane.changed.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::optional<Extent> Spilled::reserve(std::uint64_t nbytes) {
  auto pages = static_cast<std::uint32_t>(round_up(nbytes, kSmallPage) / kSmallPage);
  if (!free_.fits(pages)) {
    tiers_.note_failure(kFile, ENOSPC);
    return std::nullopt;
  }
  Run run = free_.take(pages);
  Extent extent{kRegion, run.first * std::uint64_t{kSmallPage}, pages * std::uint64_t{kSmallPage}};
  if (tiers_.reserve(extent, kFile, kFile + 1, false) == kFast) {
    free_.give(run);
    return std::nullopt;
  }
  used_ += extent.bytes;
  peak_ = std::max(peak_, used_);
  return extent;
}

void Spilled::release(const Extent& extent) {
  tiers_.release(extent, bit(kFile));
  free_.give({static_cast<Slot>(extent.begin / kSmallPage), static_cast<std::uint32_t>(extent.bytes / kSmallPage)});
  used_ -= extent.bytes;
}

Spilled::Handle Spilled::write(const Extent& to, char* memory, std::function<void()> before) {
  return enqueue(Out, to, memory, std::move(before));
}

Spilled::Handle Spilled::read(const Extent& from, char* memory, std::function<void()> before) {
  return enqueue(Back, from, memory, std::move(before));
}

Spilled::Handle Spilled::enqueue(Way way, const Extent& extent, char* memory, std::function<void()> before) {
  auto copy = std::make_shared<Copy>(way, extent, memory, std::move(before));
  Lock lock(mutex_);
  lanes_[way].copies.push_back(copy);
  lanes_[way].changed.notify_all();
  return copy;
}

bool Spilled::has_ended(const Handle& copy) {
  Lock lock(mutex_);
  return copy->has_ended();
}

int Spilled::wait(const Handle& copy) {
  Lock lock(mutex_);
  auto& queue = lanes_[copy->way].copies;
  if (auto found = std::ranges::find(queue, copy); found != queue.end()) std::rotate(queue.begin(), found, found + 1);
  ended_.wait(lock, [&] { return copy->has_ended(); });
  return copy->error;
}

std::string Spilled::failure(int error) const {
  Failure failure = tiers_[kFile].explain(error);
  return std::string(failure.where) + ": " +
         (error == EBADMSG ? "other bytes came back than were written" : std::strerror(error)) + "; " + failure.cure;
}

void Spilled::carry_out(Way way) {
  block_signals();
  Lane& lane = lanes_[way];
  Lock lock(mutex_);
  while (true) {
    if (lane.copies.empty()) {
      if (stopping_) return;
      lane.changed.wait(lock);
      continue;
    }
    Handle copy = lane.copies.front();
    std::uint64_t at = copy->taken, bytes = std::min<std::uint64_t>(kChunk, copy->extent.bytes - at);
    copy->taken += bytes;
    if (copy->taken == copy->extent.bytes) lane.copies.pop_front();
    lock.unlock();
    int error = 0;
    try {
      copy->before();
    } catch (...) {  // the device has failed, which whoever uses it is told
      error = ECANCELED;
    }
    if (error == 0) error = carry(way, {kRegion, copy->extent.begin + at, bytes}, copy->memory + at);
    lock.lock();
    if (copy->error == 0) copy->error = error;
    copy->ended += bytes;
    if (copy->has_ended()) ended_.notify_all();
  }
}

int Spilled::carry(Way way, const Extent& chunk, char* memory) {
  if (way == Out) return tiers_.write(kFile, chunk, memory);
  int error = 0;
  for (int tries = 0; tries < kReadTries; ++tries) {
    error = tiers_.read_into(kFile, chunk, memory);
    if (error == 0) break;
  }
  return error;
}

}  // namespace ebbtide
