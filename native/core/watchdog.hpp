// How long somebody waits for the slower tiers before he goes on without them. A process that is stopped (a suspended job) waits
// for nobody meanwhile: whoever waits looks many times a second, so where nobody looked for long, it was stopped.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ebbtide {

class Watchdog {
 public:
  explicit Watchdog(std::int64_t ns) : ns_(ns) {}
  void set(std::int64_t ns) { ns_ = ns; }

  // Callers MUST call it many times a second while they wait. Nothing has moved since `since`.
  bool has_expired(std::int64_t now, std::int64_t since) {
    if (now - std::max(looked_, since) > kStopped) resumed_ = now;
    looked_ = now;
    return now - std::max(since, resumed_) > ns_;
  }

 private:
  static constexpr std::int64_t kStopped = 2'000'000'000;
  std::int64_t ns_;
  std::int64_t looked_ = 0, resumed_ = 0;
};

}  // namespace ebbtide
