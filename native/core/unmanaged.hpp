// What the process holds outside the arena: what it has resident, less what of that is reserved. Pages that are reserved
// and not yet touched make it look smaller than it is, so what counts is its peak over this step and the last.
//
// [Note: swings] What comes and goes within a step (a batch that the script makes in NumPy) is expected to come in the next
// one too, on top of what is there by then.
//
// [Note: unseen] A look every few milliseconds misses what comes and goes between two. It shows in the process's own peak:
// where that rose during a step, at least the peak less the most that was reserved then lay outside. What looks had not
// seen of that is kept free from then on, and forgotten slowly.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ebbtide {

class Unmanaged {
 public:
  void reserved(std::uint64_t bytes) { reserved_high_ = std::max(reserved_high_, bytes); }
  // Whether it has just grown, so that another look soon is worth it.
  bool look(std::uint64_t resident, std::uint64_t reserved) {
    std::uint64_t before = now_;
    now_ = resident > reserved ? resident - reserved : 0;
    high_[0] = std::max(high_[0], now_);
    return now_ > before + kNotable;
  }
  void begin_step(std::uint64_t resident, std::uint64_t reserved) {
    look(resident, reserved);
    base_ = now_;
  }
  // `peak` is the process's since it was last reset, whoever reset it.
  void end_step(std::uint64_t peak, std::uint64_t reserved) {
    unseen_ -= unseen_ / kForgets;
    std::uint64_t known = bytes();
    if (peak_ != 0 && peak > peak_ && peak > reserved_high_ + known) unseen_ += peak - reserved_high_ - known;
    peak_ = peak;
    reserved_high_ = reserved;
    swing_[1] = swing_[0];
    swing_[0] = high_[0] - std::min(high_[0], std::max(base_, now_));
    base_ = now_;
    high_[1] = high_[0];
    high_[0] = now_;
  }
  // What was there is known to have gone; the next look follows.
  void forget_step() { high_[0] = 0; }
  std::uint64_t bytes() const { return std::max({high_[0], high_[1], base_ + std::max(swing_[0], swing_[1])}) + unseen_; }

 private:
  static constexpr std::uint64_t kForgets = 64;  // this part of it each step
  static constexpr std::uint64_t kNotable = std::uint64_t{1} << 20;
  std::uint64_t now_ = 0, base_ = 0;  // base: between the steps
  std::uint64_t high_[2] = {0, 0};    // in this step and the one before
  std::uint64_t swing_[2] = {0, 0};   // in the two steps before: the high above what was there before or after
  std::uint64_t unseen_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t reserved_high_ = 0;  // in this step
};

}  // namespace ebbtide
