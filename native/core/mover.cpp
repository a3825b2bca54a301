#include "mover.hpp"

#include <new>

namespace ebbtide {

namespace {
constexpr auto kWaitAtMost = std::chrono::milliseconds(50);
}  // namespace

void Mover::list_links() {
  auto add = [this](Rank source, Rank target) {
    link_at_[source][target] = static_cast<std::uint8_t>(links_.size());
    links_.push_back({source, target});
  };
  for (Rank rank = 1; rank <= slowest_; ++rank) add(rank, kFast);
  for (Rank rank = 1; rank <= slowest_; ++rank) add(kFast, rank);
  for (Rank source = 1; source <= slowest_; ++source) {
    for (Rank target = 1; target <= slowest_; ++target) {
      if (source != target) add(source, target);
    }
  }
}

// --- the queues

void Mover::enqueue(BlockId id, Rank source, Rank target, Then then, bool urgent) {
  Block& b = blocks_[id];
  b.transfer = {.source = source, .target = target, .then = then};
  Transfer& t = b.transfer;
  t.asked_ns = now_ns();
  t.asked_tick = tape_.clock().tick;
  t.chunks = static_cast<std::uint32_t>((moved_bytes(b) + kChunk - 1) / kChunk);
  ++busy_;
  push(id, urgent);
  hook_(Point::Queued, id);
  work_.notify_all();
}

void Mover::push(BlockId id, bool first) {
  Transfer& t = blocks_[id].transfer;
  Link& l = link(t);
  (first ? t.next : t.previous) = first ? l.head : l.tail;
  (t.previous == kNoBlock ? l.head : blocks_[t.previous].transfer.next) = id;
  (t.next == kNoBlock ? l.tail : blocks_[t.next].transfer.previous) = id;
}

void Mover::dequeue(BlockId id) {
  Transfer& t = blocks_[id].transfer;
  Link& l = link(t);
  (t.previous == kNoBlock ? l.head : blocks_[t.previous].transfer.next) = t.next;
  (t.next == kNoBlock ? l.tail : blocks_[t.next].transfer.previous) = t.previous;
  t.next = t.previous = kNoBlock;
}

bool Mover::cut_short(BlockId id) {
  Transfer& t = blocks_[id].transfer;
  if (t.queued()) dequeue(id);
  t.brings = Brings::Nothing;
  t.chunks = t.handed_out;
  if (t.busy()) return false;
  t = {};
  --busy_;
  return true;
}

// The first link that has something queued: from the preferred one on, of those from and to fast memory; else of the others.
Mover::Link* Mover::next(std::size_t preferred, bool across) {
  const std::size_t fast = 2 * std::size_t{slowest_};
  for (std::size_t i = 0; i < fast; ++i) {
    Link& l = links_[(preferred + i) % fast];
    if (l.head != kNoBlock) return &l;
  }
  for (std::size_t i = fast; across && i < links_.size(); ++i) {
    if (links_[i].head != kNoBlock) return &links_[i];
  }
  return nullptr;
}

// --- the threads

void Mover::start(std::mutex& mutex, unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) {
    if (slowest_ > 1) buffers_.push_back(std::make_unique<Reservation>(kChunk, kHugePage, PROT_READ | PROT_WRITE));
    void* buffer = slowest_ > 1 ? buffers_.back()->begin() : nullptr;
    threads_.emplace_back([this, &mutex, i, buffer] { io_loop(mutex, i, buffer); });
  }
}

void Mover::stop(std::mutex& mutex) {
  {
    Lock lock(mutex);
    stopping_ = true;
    work_.notify_all();
    changed();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Mover::io_loop(std::mutex& mutex, std::size_t preferred, void* buffer) {
  block_signals();
  Lock lock(mutex);
  while (!stopping_) {
    if (!carry_out_chunk(lock, preferred, buffer)) work_.wait(lock);
  }
}

// Carries out one chunk of the next transfer, without the mutex. False: there is nothing to do.
bool Mover::carry_out_chunk(Lock& lock, std::size_t preferred, void* buffer) {
  Link* l = hushed() ? nullptr : next(preferred, buffer != nullptr);
  if (l == nullptr) return false;
  BlockId id = l->head;
  Block& b = blocks_[id];
  std::uint32_t chunk = b.transfer.handed_out++;
  if (chunk == 0) b.transfer.begun_ns = now_ns();
  if (b.transfer.handed_out == b.transfer.chunks) dequeue(id);
  ++in_flight_;
  bool back = l->target == kFast;
  bool pages = b.transfer.brings == Brings::Pages;  // who cuts it short meanwhile says only that it brings nothing
  lock.unlock();
  hook_(Point::BeforeChunk, id);
  std::int64_t begun = now_ns();
  int error = cargo_.carry(b, chunk, pages, buffer);
  hook_(Point::AfterChunk, id);
  lock.lock();
  --in_flight_;
  progress_ns_ = now_ns();
  copy_ns_[back ? 0 : 1] += progress_ns_ - begun;
  if (error != 0) {
    b.transfer.error = error;
    if (b.transfer.queued()) dequeue(id);
    b.transfer.chunks = b.transfer.handed_out;
  }
  ++b.transfer.done;
  if (!b.transfer.busy()) {
    --busy_;
    cargo_.arrived(id);
  }
  if (hushed()) changed();
  return true;
}

void Mover::wait(Lock& lock, bool outwards) {
  if (!carry_out_chunk(lock, outwards ? slowest_ : 0, nullptr)) changed_.wait_for(lock, kWaitAtMost);
}

void Mover::changed() {
  ++changes_;
  changed_.notify_all();
}

// --- fork

void Mover::hush(Lock& lock) {
  ++hushed_;
  while (in_flight_ > 0) changed_.wait(lock);
}

void Mover::resume() {
  --hushed_;
  work_.notify_all();
}

void Mover::renew() {
  new (&work_) std::condition_variable;
  new (&changed_) std::condition_variable;
}

}  // namespace ebbtide
