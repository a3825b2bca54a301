// Links as fluids: each carries one copy at a time, in order, and those of a group share its bandwidth.
//
// A copy takes its link's latency, in which it uses no bandwidth, and then its bytes at the link's rate, chunk by chunk. Its first
// chunk begins when its receiver admits it, which takes the room, and so does every later one; until then those behind it wait.
// Time is in ns. Left out: bandwidth by block size, and seeks between copies.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "machine.hpp"
#include "pieces.hpp"

namespace ebbtide::simulate {

inline constexpr double kEndless = std::numeric_limits<double>::infinity();

// A piece's bytes on their way between two tiers.
struct Copy {
  Piece piece;
  unsigned source, target;
  std::int64_t left;  // bytes that are not there yet
  std::int64_t due;  // the tick, from the first step on, at which the plan counts on them
  bool demanded = false, urgent = false;
  bool dead = false;  // ends with its chunk
  std::int64_t chunk = 0;  // bytes on the link
  std::int64_t taken = 0;  // the room that it has on its target
  std::int64_t freed = 0;  // and what it has given up on its source
  double began = -1;  // ns

  bool has_begun() const { return began >= 0; }
};

// Who keeps the state of the tiers. `arrived` is told of every chunk, and `ended` of every copy, before that.
class Receiver {
 public:
  virtual bool admits(Copy& copy, std::int64_t nbytes) = 0;
  virtual void arrived(Copy& copy, std::int64_t nbytes) = 0;
  virtual void ended(const Copy& copy, std::size_t link) = 0;

 protected:
  ~Receiver() = default;
};

class Links {
 public:
  Links(const Machine& machine, Receiver& receiver);

  bool idle() const { return busy_.empty(); }
  bool between(unsigned source, unsigned target) const { return lane_at_[source * n_tiers_ + target] >= 0; }
  double next_end() const { return next_end_; }
  double slowdown() const { return slowdown_; }  // by what factor operations take longer now
  std::vector<std::int64_t> moved_bytes() const;  // so far, by link
  std::vector<Copy*> heads() const;  // the copies that wait for room at the head of a link
  std::vector<Copy*> queued() const;  // all

  // Queues a copy. One that is urgent goes before the next chunk of those that are not. It lives as long as this. Throws
  // std::out_of_range where there is no link.
  Copy& put(const Copy& copy);
  void hurry(Copy& copy);
  void cancel(Copy& copy);  // it ends unheard: at once if it is not under way

  void run_beside(bool operation, double now);  // whether one runs from now on: some links are slower then

  // Begins what can begin. Callers MUST call it after tiers or queues changed, and after `advance`.
  void start(double now);
  void advance(double now);  // `now` is not past `next_end`; chunks that end have arrived

 private:
  struct Lane {
    Link link;
    std::deque<Copy*> queue;  // the first is the one under way
    bool busy = false;
    bool has_urgent = false;  // perhaps
    double latency_left = 0, bytes_left = 0, rate = 0;
    std::int64_t moved = 0;
  };

  Lane& lane(const Copy& copy);
  static void bring_forward(Lane& lane);
  void take_out(Copy& copy);
  void progress(double now);
  void share();
  void set_rates();
  double alone(const Lane& lane) const;  // its rate if no other shares its group

  const std::vector<LinkGroup> groups_;
  const std::int64_t chunk_bytes_;
  const std::size_t n_tiers_;
  Receiver& receiver_;
  std::vector<Lane> lanes_;
  std::vector<int> lane_at_;  // by source and target; -1: there is none
  std::vector<Lane*> busy_;  // in the order in which they began
  std::deque<Copy> copies_;
  std::size_t n_queued_ = 0;
  double since_ = 0;
  double next_end_ = kEndless;
  double slowdown_ = 1;
  bool differ_ = false;  // some links are slower beside an operation
  bool beside_ = false;
};

}  // namespace ebbtide::simulate
