#include "links.hpp"

#include <algorithm>
#include <stdexcept>

namespace ebbtide::simulate {

namespace {
constexpr double kSoonNs = 1e-3;  // what rounding may leave of a chunk that has ended, as time at its rate
}  // namespace

Links::Links(const Machine& machine, Receiver& receiver)
    : groups_(machine.groups),
      chunk_bytes_(machine.chunk_bytes),
      n_tiers_(machine.tiers.size()),
      receiver_(receiver),
      lane_at_(n_tiers_ * n_tiers_, -1) {
  for (const Link& link : machine.links) {
    lane_at_.at(link.source * n_tiers_ + link.target) = static_cast<int>(lanes_.size());
    lanes_.push_back(Lane{link, {}});
    differ_ |= link.beside_bytes_per_ns > 0;
  }
}

void Links::run_beside(bool operation, double now) {
  if (!differ_ || operation == beside_) return;
  progress(now);
  beside_ = operation;
  share();
}

double Links::alone(const Lane& lane) const {
  double beside = lane.link.beside_bytes_per_ns;
  return beside_ && beside > 0 ? beside : lane.link.bytes_per_ns;
}

std::vector<std::int64_t> Links::moved_bytes() const {
  std::vector<std::int64_t> moved;
  for (const Lane& lane : lanes_) moved.push_back(lane.moved);
  return moved;
}

std::vector<Copy*> Links::heads() const {
  std::vector<Copy*> found;
  for (const Lane& lane : lanes_) {
    if (!lane.queue.empty() && !lane.busy) found.push_back(lane.queue.front());
  }
  return found;
}

std::vector<Copy*> Links::queued() const {
  std::vector<Copy*> found;
  for (const Lane& lane : lanes_) found.insert(found.end(), lane.queue.begin(), lane.queue.end());
  return found;
}

Links::Lane& Links::lane(const Copy& copy) {
  int at = lane_at_[copy.source * n_tiers_ + copy.target];
  if (at < 0) throw std::out_of_range("there is no such link");
  return lanes_[static_cast<std::size_t>(at)];
}

Copy& Links::put(const Copy& copy) {
  Lane& its = lane(copy);
  its.queue.push_back(&copies_.emplace_back(copy));
  its.has_urgent |= copy.urgent;
  ++n_queued_;
  return copies_.back();
}

void Links::hurry(Copy& copy) { copy.urgent = lane(copy).has_urgent = true; }

// The first that is urgent, if there is one.
void Links::bring_forward(Lane& lane) {
  auto first = std::ranges::find_if(lane.queue, &Copy::urgent);
  lane.has_urgent = first != lane.queue.end();
  if (lane.has_urgent) std::rotate(lane.queue.begin(), first, first + 1);
}

void Links::cancel(Copy& copy) {
  copy.dead = true;
  if (copy.chunk == 0) take_out(copy);
}

void Links::take_out(Copy& copy) {
  auto& waiting = lane(copy).queue;
  auto place = std::ranges::find(waiting, &copy);
  if (place == waiting.end()) throw std::invalid_argument("a copy that has ended is not on its link");
  waiting.erase(place);
  --n_queued_;
}

void Links::start(double now) {
  if (n_queued_ == busy_.size()) return;
  bool changed = false;
  for (Lane& lane : lanes_) {
    if (lane.busy || lane.queue.empty()) continue;
    if (lane.has_urgent) bring_forward(lane);
    Copy& copy = *lane.queue.front();
    std::int64_t nbytes = std::min(copy.left, chunk_bytes_);
    if (!receiver_.admits(copy, nbytes)) continue;
    if (!changed) {
      progress(now);
      changed = true;
    }
    lane.latency_left = copy.has_begun() ? 0.0 : lane.link.latency_ns;
    lane.bytes_left = static_cast<double>(nbytes);
    lane.busy = true;
    copy.chunk = nbytes;
    if (!copy.has_begun()) copy.began = now;
    busy_.push_back(&lane);
  }
  if (changed) share();
}

void Links::advance(double now) {
  progress(now);
  std::vector<Lane*> ended;
  for (Lane* lane : busy_) {
    // Late on the clock, a short time is none: now + left == now.
    if (lane->latency_left > kSoonNs && now + lane->latency_left <= now) lane->latency_left = 0;
    bool is_soon = lane->bytes_left <= lane->rate * kSoonNs || now + lane->bytes_left / lane->rate <= now;
    if (lane->latency_left <= kSoonNs && is_soon) ended.push_back(lane);
  }
  std::vector<std::pair<Copy*, std::int64_t>> told;
  for (Lane* lane : ended) {
    Copy& copy = *lane->queue.front();
    std::int64_t nbytes = copy.chunk;
    copy.chunk = 0;
    copy.left -= nbytes;
    lane->moved += nbytes;
    lane->busy = false;
    std::erase(busy_, lane);
    if (copy.left == 0 || copy.dead) {
      lane->queue.pop_front();
      --n_queued_;
      receiver_.ended(copy, static_cast<std::size_t>(lane - lanes_.data()));
    }
    told.push_back({&copy, nbytes});
  }
  share();
  for (auto [copy, nbytes] : told) receiver_.arrived(*copy, nbytes);
}

void Links::progress(double now) {
  double passed = now - since_;
  since_ = now;
  if (passed <= 0) return;
  for (Lane* lane : busy_) {
    if (lane->latency_left > kSoonNs) {
      lane->latency_left = std::max(lane->latency_left - passed, 0.0);
    } else {
      lane->bytes_left -= passed * lane->rate;
    }
  }
}

// New rates, and when the first of the busy links changes under them.
void Links::share() {
  set_rates();
  next_end_ = kEndless;
  double slows = 0;
  for (const Lane* lane : busy_) {
    slows += lane->link.slows_compute;
    if (lane->latency_left > kSoonNs) {
      next_end_ = std::min(next_end_, since_ + lane->latency_left);
    } else if (lane->rate > 0) {
      next_end_ = std::min(next_end_, since_ + std::max(lane->bytes_left, 0.0) / lane->rate);
    }
  }
  slowdown_ = 1.0 + slows;
}

void Links::set_rates() {
  for (Lane* lane : busy_) lane->rate = alone(*lane);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    auto flows = [&](const Lane& lane) {
      return lane.busy && lane.link.group == static_cast<int>(group) && lane.latency_left <= kSoonNs;
    };
    double limit = groups_[group].bytes_per_ns, wanted = 0;
    for (const Lane* lane : busy_) wanted += flows(*lane) ? alone(*lane) : 0.0;
    if (wanted <= limit) continue;
    for (Lane& lane : lanes_) {
      if (!flows(lane)) continue;
      if (groups_[group].in_order) {
        lane.rate = std::min(alone(lane), limit);
        limit -= lane.rate;
      } else {
        lane.rate *= limit / wanted;
      }
    }
  }
}

}  // namespace ebbtide::simulate
