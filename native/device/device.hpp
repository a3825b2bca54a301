// One GPU as the driver shows it: handles, which are memory without an address; addresses; streams; and copies.
//
// Thread-safe. What fails ends the process with a sentence, since by then nobody knows what the device holds; but for
// create(), which says that there is no memory left.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver.hpp"

namespace ebbtide {

using Handle = CUmemGenericAllocationHandle;
using StreamNumber = std::uint32_t;

// Work of a stream up to a point: passed, when it has run.
struct Ticket {
  StreamNumber stream = 0;
  std::uint64_t number = 0;
};

class Device {
 public:
  struct Bytes {
    std::uint64_t free, total;
  };

  Device(const Driver& driver, int ordinal);  // throws ArenaError where this GPU cannot be had
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::size_t granularity() const { return granularity_; }
  std::string name() const;
  Bytes bytes() const;  // of its memory
  char* reserve(std::size_t bytes);       // the region's address space, never given back
  char* reserve_more(std::size_t bytes);  // for other purposes, likewise
  bool owns(const void* p) const {   // whether it is such an address
    return static_cast<const char*>(p) >= reserved_ && static_cast<const char*>(p) < reserved_ + reserved_bytes_;
  }
  void use_here() const;             // the calling thread may ask for work from now on

  std::optional<Handle> create(std::size_t bytes);
  void destroy(Handle handle);
  void map(char* at, std::size_t bytes, Handle handle, bool read_only);  // whole
  void unmap(char* at, std::size_t bytes);
  void set_access(char* at, std::size_t bytes, bool read_only);

  // The host sees by a word in pinned memory how far a stream has come.
  StreamNumber number_of(CUstream stream);
  void uses(StreamNumber stream);  // the calling thread has asked for work on it
  Ticket mark(StreamNumber stream);
  bool passed(const Ticket& ticket) const;
  void require_alive() const;  // after an error no mark passes any more: ends the process, with the error's name
  void await(CUstream stream) const;                    // the work that was asked for on it so far
  void order(StreamNumber later, const Ticket& after);  // work that is asked for on `later` from now on

  void pin(void* host, std::size_t bytes);  // its pages have to be there
  void unpin(void* host);
  // Wait, and need nobody's mutex; host memory is pinned.
  void copy_out(void* to, const char* from, std::size_t bytes);
  void copy_in(char* to, const void* from, std::size_t bytes);

 private:
  static constexpr std::size_t kMostStreams = 4096;
  struct Stream {
    CUstream stream;
    std::uint64_t last = 0;  // number of its last mark
    bool unmarked = false;   // work was asked for since
  };

  StreamNumber own_stream();
  bool is_captured(CUstream stream) const;
  Ticket mark_locked(StreamNumber stream);
  void wait(const Ticket& ticket) const;
  void check(CUresult result, const char* what) const;
  void open(int ordinal);

  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::size_t granularity_ = 0;
  char* reserved_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  mutable std::mutex mutex_;  // guards the streams
  std::vector<Stream> streams_;
  std::unordered_map<CUstream, StreamNumber> numbers_;
  std::uint64_t* words_ = nullptr;  // kMostStreams of them, which streams write to
  StreamNumber out_ = 0, in_ = 0;
  CUstream out_stream_ = nullptr;
};

}  // namespace ebbtide
