// The few system calls the arena lives on, each with its failure spelled out.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace ebbtide {

// A request that cannot be met; the text says why and what to do.
struct ArenaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Address space without memory: reserved on construction, never given back (deleters run after main).
class Reservation {
 public:
  static constexpr bool kShared = true;  // a forked child sees what its parent writes there

  // `bytes` of inaccessible address space aligned to `alignment`. Throws ArenaError.
  Reservation(std::size_t bytes, std::size_t alignment, int protection, bool shared = false);
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  char* begin() const { return begin_; }
  std::size_t size() const { return bytes_; }
  bool contains(const void* p) const {
    return static_cast<const char*>(p) >= begin_ && static_cast<const char*>(p) < begin_ + bytes_;
  }

 private:
  char* begin_;
  std::size_t bytes_;
};

// All of these are async-signal-safe. The `must_` forms end the process with a message that names the cure:
// by then a page is neither here nor there, and going on could only lose data.
bool protect(void* address, std::size_t bytes, int protection);
extern std::atomic<int (*)(void*, std::size_t, int)> mprotect_call;  // tests put their own here, and below
void must_protect(void* address, std::size_t bytes, int protection);
// Moves the pages of [from, from + bytes) to `to`, which loses its own; `from` stays mapped and empty.
void must_move_pages(void* from, void* to, std::size_t bytes);
extern std::atomic<void* (*)(void* from, void* to, std::size_t bytes)> move_call;  // null: it failed, by errno
// Makes it inaccessible address space without pages again, whatever it was; neighbours like it are merged with it.
void must_reserve(void* address, std::size_t bytes);
// Makes it accessible memory without pages yet, of huge pages where `huge`; a forked child does not get it.
void must_map(void* address, std::size_t bytes, bool huge);
// From now on what the two map has a policy: pages come from the node of the CPU that asks, and the kernel's balancing of NUMA
// nodes, which moves pages to who touches them, keeps off. All of it has the same, so it parts no memory areas.
void keep_pages_where_they_are();
int make_pages_local(void* address, std::size_t bytes);  // that policy; 0 or an errno
// Gives it all its pages now; not every kernel can.
bool can_populate();
void must_populate(void* address, std::size_t bytes);
// Its pages go back to the kernel; it stays what it was otherwise.
void must_drop_pages(void* address, std::size_t bytes);
// Whether a forked child gets these pages; else it has empty ones there.
bool set_inherited(void* address, std::size_t bytes, bool inherited);
// New pages somewhere, for must_place() to put where they belong.
void* must_get(std::size_t bytes);
void must_place(void* from, void* to, std::size_t bytes);
[[noreturn]] void fatal(const char* what, int error);
// What to say where a descriptor of ours is another file's, or nobody's.
inline constexpr const char* kClosedByScript =
    "the script closed a file that it had not opened (os.closerange, say): let it close its own files alone";
void say(const char* text);  // one line on stderr

// Three digits and a binary unit, as format_bytes in src/ebbtide/units.py writes it.
struct BytesText {
  explicit BytesText(std::uint64_t bytes);
  char text[16];
};

void block_signals();                 // for a thread of ours: the script's handlers run on its own
void block_sent_signals();            // the same, for one that may fault
std::int64_t now_ns();                // CLOCK_MONOTONIC
bool is_in_memory(const void* page);  // private memory: whether this page has been filled
bool is_written(const void* file,
                std::size_t nbytes);  // mapped privately: whether a page is this process's own; true where nobody can tell
std::size_t memory_areas();       // of this process, from /proc/self/maps; 0 if it cannot be read
std::size_t most_memory_areas();  // vm.max_map_count; the kernel's default if it cannot be read
struct ProcessMemory {
  std::size_t resident = 0, shared = 0;
};
ProcessMemory process_memory();  // VmRSS, and what of it are pages of files and shared memory; 0 if it cannot be read
std::size_t process_file_bytes();  // RssFile: pages of files alone
std::size_t process_peak_bytes();      // VmHWM, from /proc/self/status; 0 if it cannot be read
std::size_t anonymous_bytes(pid_t process);  // what another process has resident that is no file's; 0 if it has ended
bool kill_child(pid_t process);  // false where it is no child of this process, or was waited for

}  // namespace ebbtide
