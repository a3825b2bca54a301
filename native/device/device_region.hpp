// A GPU's memory as a region. Physical memory is handles: one for each block, whole, made and given back by size.
//
// [Note: handles]  A handle is
//   a block's  mapped at its address: read and write where the block is Dirty, read-only where it is Clean
//   leaving    likewise, until its uses have ended; then only at its home, while its contents are copied out
//   filling    only at its home, while contents are copied in
//   parked     left mapped at the address where its last block died: work of that block may still be under way
//   naked      only at its home; nothing of its last block is under way
// Every handle has a home: a second address, mapped as long as there is the handle, at which copies read and write. So what
// is being copied is mapped nowhere else, and an access that nobody announced ends the process: it cannot read half of it.
//
// [Note: uses] in region.hpp: the streams of a handle are those that work with it may be under way on. When it leaves or
// is parked each is marked; a handle changes owners when the host has seen the marks pass, or on a stream that waits for them.
//
// Under the arena's mutex, but for detach(), await_fill() and contents(); its own mutex guards handles against these.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "../core/region.hpp"
#include "device.hpp"

namespace ebbtide {

class DeviceRegion final : public Region {
 public:
  // `stream` says which stream the calling thread's work goes to.
  DeviceRegion(Device& device, std::size_t bytes, CUstream (*stream)());

  bool faults() const override { return false; }
  std::uint64_t cached_bytes() const override { return cached_bytes_; }
  std::uint64_t fresh_bytes(std::uint32_t pages) const override;
  std::uint64_t release_cached(std::uint64_t bytes, std::uint32_t pages_kept) override;
  bool release_comes() const override;

  Run allocate_pages(std::uint32_t pages, bool sparing) override;  // throws ArenaError where the GPU has no memory left
  void give_pages(Run run, bool sparing) override;
  void give_new(Run run) override { give_pages(run, false); }
  void free_pages(Run run) override;
  void free_address(Run run) override { vacant_.give(run); }
  void unmap(Run run) override;
  void decommit(Run run) override;
  bool make_read_only(Run run) override;
  void make_writable(Run run) override;
  void begin_fill(Run run) override;
  Run filling(Slot place, std::uint32_t most) const override;
  void end_fill(Run run, bool appear) override;

  void used(Run run) override { used_on(run, stream_()); }
  void used_on(Run run, void* stream) override;
  void start_leaving(Run run, bool readable) override;
  void stay(Run run, bool read_only) override;
  bool is_detached(Run run) const override;
  bool detach(Run run) override;
  void await_fill(Run run) override;
  const char* contents(Run run) const override;

  std::uint64_t created_bytes() const { return created_bytes_; }
  void check() const;  // throws std::logic_error; for tests

 private:
  using Id = std::uint32_t;
  static constexpr Id kNone = ~Id{0};
  enum class Leaving : std::uint8_t { No, Readable, Whole };

  struct Backing {
    Handle handle{};
    Run home;
    Run at;  // where it is mapped besides; no pages: nowhere
    bool read_only = false;
    Leaving leaving = Leaving::No;
    bool detached = false;  // it leaves, and is mapped nowhere else
    std::vector<StreamNumber> streams;
    std::vector<Ticket> tickets;  // of its last uses, from when it was marked
  };

  std::size_t bytes(Run run) const { return run.count * page(); }
  Id& of(Slot place) const { return reinterpret_cast<Id*>(of_.begin())[place]; }  // holds id + 1
  Backing* find(Run run);
  Backing& get(Run run);
  Id take_cached(std::uint32_t pages, StreamNumber stream);
  Id create(std::uint32_t pages);
  void destroy(Id id);
  void cache(Id id);
  void mark(Backing& b);
  bool has_passed(const Backing& b) const;
  void wait_a_little() const;
  void map_at(Backing& b, Run run, bool read_only);
  void unmap_at(Backing& b);
  void add_stream(Backing& b, StreamNumber stream);

  Device& device_;
  CUstream (*const stream_)();
  Reservation of_;
  mutable std::mutex mutex_;
  std::deque<Backing> backings_;
  std::vector<Id> unused_;
  std::map<std::uint32_t, std::vector<Id>> cached_;  // parked and naked ones, by pages
  std::uint64_t cached_bytes_ = 0;
  std::uint64_t created_bytes_ = 0;
};

}  // namespace ebbtide
