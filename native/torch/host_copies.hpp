// The copies on the host of what has left a device: in pinned memory, and below that in the spill file, if there is one. Contents
// go to the file and come back through pinned memory. What came back lies in both until its copy is dropped. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/spilled.hpp"
#include "pinned_buffers.hpp"

namespace ebbtide {

struct HostCopy {
  std::uint64_t nbytes = 0;
  Buffer memory;  // none: it lies in the file alone
  std::shared_ptr<Spilled> file;  // in which it lies, too
  std::optional<Extent> extent;  // its place there
  Spilled::Handle under_way;  // to the file, or back
  bool comes = false;  // from the file
  bool came = false;  // it has come from there, and nobody has used it since
  bool stays = false;  // somebody needs it in memory
  bool is_dropped = false;  // while it was under way
  int error = 0;  // of its last way

  bool is_in_memory() const { return memory && !comes; }
};

class HostCopies {
 public:
  explicit HostCopies(c10::DeviceType device) : buffers_(device) {}

  void set_limit(std::uint64_t bytes);
  void prepare(std::uint64_t bytes) { buffers_.prepare(bytes); }
  // Copies that find no memory go to files there from now on. Throws ArenaError.
  void open(const std::vector<std::string>& directories, unsigned threads);
  bool has_file() const { return file_ != nullptr; }

  // Memory for a copy of so many bytes; null: there is none. It lasts until it is dropped. Above a file, who waits gets it also where
  // what is free lies in parts: more is pinned then.
  HostCopy* take(std::uint64_t nbytes, bool waits);
  void drop(HostCopy*& copy);  // nobody needs it; null afterwards

  // Its memory is to be free for others, once it lies in the file; `after`: when its contents have come. False: it stays,
  // since the file takes it no more, or it is needed.
  bool spill(HostCopy& copy, c10::Event after);
  // It is to come back. False: there is no memory for it, unless `must`: then more is taken than the limit allows.
  bool bring(HostCopy& copy, bool must);
  void wait(HostCopy& copy);  // until it is under way no more
  void settle();  // takes note of what has ended
  bool wait_for_one();  // that is under way, best one that gives up its memory. False: none is

  // How many bytes more should be given up, so that what comes next finds memory at once.
  std::uint64_t excess() const;
  void give_back();  // all memory and the file, where no copy is left

  std::uint64_t used() const { return buffers_.used(); }
  std::uint64_t peak() const { return buffers_.peak(); }
  std::uint64_t file_used() const { return file_ ? file_->used() : 0; }
  std::uint64_t file_peak() const { return file_ ? file_->peak() : 0; }
  std::uint64_t file_written() const { return written_; }
  std::uint64_t file_read() const { return read_; }
  static std::string failure(const HostCopy& copy) { return copy.file->failure(copy.error); }  // to read it
  std::string failure() const { return file_->failure(error_); }
  int error() const { return error_; }  // why the file takes no more; 0: it does

 private:
  std::uint64_t contents() const;  // bytes in memory; their buffers may be larger
  void settle(HostCopy& copy);
  void end(HostCopy& copy);

  PinnedBuffers buffers_;
  std::shared_ptr<Spilled> file_;  // an earlier one is there as long as copies lie in it
  std::unordered_map<const HostCopy*, std::unique_ptr<HostCopy>> copies_;
  std::vector<HostCopy*> under_way_;  // the oldest first
  std::uint64_t limit_ = 0;
  std::uint64_t giving_up_ = 0;  // memory of what is on its way to the file
  std::uint64_t written_ = 0, read_ = 0;
  int error_ = 0;
};

}  // namespace ebbtide
