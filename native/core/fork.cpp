// fork: the child gets what it needs and nothing that would be copied in vain.
//
// [Note: children]  Training state (what was classified: parameters, gradients, optimizer state) is not inherited: a child
// that merely exists would make the parent's every write copy a page, and split its huge pages. All else is, whenever it was
// born (nothing tells a validation set from the activations beside it), and costs no more than these copies while the child
// lives: what is in memory by sharing its pages, copied on write; what is away by reading the parent's spill file, or pages of
// a tier in memory that it shares, when the child touches it, a chunk at a time, into pages of its own. The place in the file
// keeps those bytes until the parent evicts the block anew or frees it. Both are announced in memory that parent and child
// share, by a new version, before the file can change; the child compares versions after it has read. So it sees the bytes of
// the moment of the fork, or dies with a sentence. A page of the arena that is neither has no pages in the child, and is made
// inaccessible before anything runs there.
//
// The child has no I/O threads and no budget; its new storages come from the previous allocator.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "arena.hpp"

namespace ebbtide {

namespace {
constexpr const char* kNotInherited =
    "a forked child touched training state (a parameter, a gradient, optimizer state) or freed memory of its parent, which it "
    "does not inherit: pass it a copy (a clone, a NumPy array, a file), or start it with the spawn method";
constexpr const char* kChanged =
    "a forked child touched a tensor that was out of memory when it was forked and that its parent has changed or freed since: "
    "keep it as it is while children use it, or pass them a copy (a NumPy array, a file)";
constexpr const char* kUnreadable =
    "a forked child cannot read a tensor that is out of memory, or other bytes come back than were written";
constexpr const char* kClosed =
    "a forked child touched a tensor that was out of memory when it was forked, and it has closed the spill file, which it had "
    "not opened (os.closerange, say): let it close its own files alone, or pass it a copy (a NumPy array, a file)";
constexpr const char* kUnmade =
    "a forked child touched a tensor that its parent had given up, to make it anew from others: pass it a copy (a clone, a NumPy "
    "array, a file), or switch this off (EBBTIDE_REMAKE=0)";
constexpr const char* kNoAreas =
    "a forked child touched a tensor that it could not get, because memory areas ran out; as root: sysctl vm.max_map_count=1000000";

// Pages for what is read, given back unless they have come to their place.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes), at_(must_get(bytes)) {}
  ~Pages() {
    if (at_ != nullptr) munmap(at_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* get() const { return at_; }
  void* release() { return std::exchange(at_, nullptr); }

 private:
  std::size_t bytes_;
  void* at_;
};
}  // namespace

void Arena::inherit(bool inherited) {
  for (BlockId id : blocks_.live()) {
    Block& b = blocks_[id];
    if (b.classified || !b.has_pages()) continue;
    b.heirs = set_inherited(b.address, b.paged_bytes, inherited) && inherited ? Heirs::Newest : Heirs::Some;
  }
}

// Nobody makes in the child what is away. On another thread: one that has shared its work with others hangs when it does so in a child.
void Arena::make_before_fork() {
  if (in_child_ || moves_.unmade() == 0) return;
  try {
    std::thread(options_.make_all).join();
  } catch (const std::system_error&) {  // no thread may begin: what is not made is an error in the child, where it is touched
  }
}

void Arena::before_fork() {
  Lock lock(mutex_);
  if (!in_child_) {
    mover_.hush(lock);
    inherit(true);
  }
  lock.release();  // held across the fork
}

void Arena::after_fork_in_parent() {
  if (!in_child_) {
    inherit(false);
    mover_.resume();
  }
  mutex_.unlock();
}

void Arena::after_fork_in_child() {
  new (&mutex_) std::mutex;
  new (&governor_wakes_) std::condition_variable;
  mover_.renew();
  moves_.freeze();
  tiers_.hush();
  if (in_child_.exchange(true)) return;  // a child's child has what the child has
  for (Region* r : {&memory_.huge(), &memory_.small()}) r->hide();
  for (BlockId id : blocks_.live()) {
    if (blocks_[id].heirs == Heirs::Newest) memory_.region(blocks_[id].shape).show(blocks_[id].place);
  }
}

// Reads the chunk at an address from the file if it is not there yet. Null, or why not, in a sentence.
const char* Arena::bring_to_child(BlockId id, const void* address) {
  if (id == kNoBlock || blocks_[id].state == State::Dead || blocks_[id].classified) return kNotInherited;
  if (blocks_[id].has_pages()) return kNoAreas;
  if (blocks_[id].state == State::Unmade) return kUnmade;
  const Block& b = blocks_[id];
  const bool is_empty = b.state == State::Untouched || b.state == State::Blank;
  Region& r = memory_.region(b.shape);
  auto offset = static_cast<std::uint64_t>(static_cast<const char*>(address) - b.address);
  if (offset >= moved_bytes(b)) return kNotInherited;  // beyond the storage
  std::uint64_t begin = offset / kChunk * kChunk;
  std::uint64_t end = std::min<std::uint64_t>(begin + kChunk, moved_bytes(b));
  Slot first = b.place.first + static_cast<Slot>(begin / r.page());
  if (r.has_come(first)) return nullptr;  // another thread was faster
  Pages pages(end - begin);
  if (is_empty) {
    r.come(first, pages.release(), end - begin);
    return nullptr;
  }
  const Rank tier = fastest_with(b);
  int error = 0;
  for (int tries = 0; tries < kReadTries; ++tries) {
    error = tiers_.read_into(tier, memory_.extent(b, begin, end - begin), pages.get());
    if (moves_.have_changed(id)) return kChanged;
    if (error != 0) continue;
    r.come(first, pages.release(), end - begin);
    return nullptr;
  }
  return error == EBADF ? kClosed : kUnreadable;
}

bool Arena::on_fault_in_child(const void* address) {
  Lock lock(mutex_);
  const char* trouble = bring_to_child(find(address), address);
  if (trouble != nullptr) say(trouble);
  return trouble == nullptr;
}

// For whoever reaches it without a fault.
int Arena::fetch_in_child(const void* address, std::uint64_t nbytes) {
  Lock lock(mutex_);
  if (find_live(address) == kNoBlock) return ENOENT;
  const Operand asked = operand_at(address, nbytes);
  each_piece(asked, [&](BlockId id, std::uint64_t) {
    const Block& b = blocks_[id];
    const ByteRange all{b.before, b.before + moved_bytes(b)};
    const ByteRange part = b.is_piece() ? asked.range.within(all.begin, all.end) : all;
    for (std::uint64_t at = (part.begin - b.before) / kChunk * kChunk; b.heirs != Heirs::Newest && at < part.end - b.before;
         at += kChunk) {
      if (const char* trouble = bring_to_child(id, b.address + at); trouble != nullptr) throw ArenaError(trouble);
    }
  });
  return 0;
}

}  // namespace ebbtide
