// Records a step on what plain PyTorch allocates: nothing moves, and every storage of the CPU is seen, however small.
//
// Storages are known by their addresses. One that was born before the recorder is met at its first use, or when Python names it.
// From then on its end is seen too, if PyTorch's own allocator made it. Other memory (a mapped file, a NumPy array) ends unseen:
// it counts as there until something else lies at its address.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "watch.hpp"

namespace ebbtide {

class PlainRecorder final : public Watch {
 public:
  explicit PlainRecorder(c10::Allocator& pytorchs) : pytorchs_(pytorchs) {}

  void* allocate(std::size_t nbytes);
  void release(void* address);
  // Forgets what is there; it is met again at its next use. Storages are in pieces as in an arena.
  void watch(bool watches, std::uint64_t least_piece = 0);
  void child() { in_child_ = true; }

  bool on() const override { return tape_.records() && !in_child_; }
  const void* find(c10::StorageImpl& storage) override;
  void enter(const char* name, std::span<const Operand> operands, Work work, Pass pass) override;
  void exit() override;
  std::uint64_t note_need(const char* name, std::span<const Operand> operands) override;
  void prefetch(std::span<const Operand>) override {}
  Counters begin_step(bool record) override;
  Counters end_step(bool completed) override;
  void classify(const void* address, Kind kind) override;
  Tape& tape() override { return tape_; }

 private:
  using Lock = std::lock_guard<std::mutex>;

  struct Live {
    std::uint64_t serial = 0;
    std::uint64_t nbytes = 0;
    Kind kind = Kind::Other;
    bool classified = false;
    bool born_in_step = false;
    bool born_in_operator = false;    // and that operator has not ended yet
    bool end_is_seen = true;
    std::uint32_t recorded = kNever;  // its number in the current recording
    std::uint64_t used_by = 0;        // serial of the operator that used it last
    std::uint64_t whole = 0;          // of a piece, its storage
  };

  // A storage in pieces, each of which is in live_ from its birth on [Note: pieces].
  struct Large {
    std::uint64_t nbytes = 0;
    std::uint64_t each = 0;
    bool end_is_seen = true;
    std::optional<Kind> classified{};
    LineOf line{};  // where it was made
    std::uint64_t whole = 0;  // its number
  };

  void born(void* address, std::size_t nbytes);
  void take_up(const void* address, const Large& large, bool is_born, bool in_operator);
  void begin_piece(const void* address, const Large& large, std::uint64_t number, bool is_born, bool in_operator);
  template <typename Visit>
  void each_piece(const Operand& operand, Visit visit);
  void ended_at(const void* address);
  void begin_to_watch(const void* address, Live live, bool is_born) { begin_to_watch(address, live, is_born, tape_.line()); }
  void begin_to_watch(const void* address, Live live, bool is_born, LineOf line);
  void ended(std::unordered_map<const void*, Live>::iterator entry);

  bool sees_end_of(c10::DataPtr& data);

  c10::Allocator& pytorchs_;
  std::mutex mutex_;  // guards all below
  std::unordered_map<const void*, Live> live_;
  std::unordered_map<const void*, Large> large_;
  std::uint64_t least_piece_ = 0;
  Tape tape_{mutex_};
  std::atomic<bool> in_child_ = false;
  std::atomic<bool> watches_ = false;
  std::uint64_t serials_ = 0;
  std::uint64_t operators_ = 0;
  std::uint64_t wholes_ = 0;
};

// Puts the recorder in front of the CPU allocator, once; it stays there until the process ends. Throws
// std::runtime_error where an arena or another allocator is in the way.
PlainRecorder& install_plain_recorder();

// Returns the deleter of storages whose birth the recorder saw. Null before there is one.
c10::DeleterFnPtr watched_deleter();

}  // namespace ebbtide
