// What lies in the spill file below a device's host memory: where each copy lies there, and threads that carry them.
//
// Each way has a queue and threads of its own: who reads waits for no write. Whoever waits for a copy has it go first.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "free_runs.hpp"
#include "tiers.hpp"

namespace ebbtide {

class Spilled {
 public:
  class Copy;
  using Handle = std::shared_ptr<Copy>;

  // Throws ArenaError that says why one of `directories` (at least one) cannot be used. `threads` are for each way.
  Spilled(const std::vector<std::string>& directories, unsigned threads);
  ~Spilled();  // when all that is under way has ended
  Spilled(const Spilled&) = delete;
  Spilled& operator=(const Spilled&) = delete;

  // Where so many bytes may lie, rounded up to pages; none: the disk has no room for them.
  std::optional<Extent> reserve(std::uint64_t nbytes);
  int error() const { return tiers_.error(); }  // of the last time that there was none
  void release(const Extent& extent);  // none of it is under way

  // Both carry the whole extent once `before` has returned, which every thread calls that carries a part. Where it throws, that ends
  // with ECANCELED.
  // `memory` begins at a page, and is there until that has ended.
  Handle write(const Extent& to, char* memory, std::function<void()> before);
  Handle read(const Extent& from, char* memory, std::function<void()> before);
  bool has_ended(const Handle& copy);
  int wait(const Handle& copy);  // 0 or an errno. EBADMSG: other bytes came back than were written
  std::string failure(int error) const;

  std::uint64_t used() const { return used_; }  // bytes of what is reserved
  std::uint64_t peak() const { return peak_; }

 private:
  enum Way : std::size_t { Out, Back };
  struct Lane {
    std::deque<Handle> copies;  // that have chunks which no thread has taken
    std::condition_variable changed;
  };
  using Lock = std::unique_lock<std::mutex>;

  void stop();
  Handle enqueue(Way way, const Extent& extent, char* memory, std::function<void()> before);
  void carry_out(Way way);
  int carry(Way way, const Extent& chunk, char* memory);

  Tiers tiers_;
  FreeRuns free_;  // pages of the file, as far as it may grow
  std::uint64_t used_ = 0, peak_ = 0;

  std::mutex mutex_;  // guards what follows, and each copy
  std::array<Lane, 2> lanes_;
  std::condition_variable ended_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ebbtide
