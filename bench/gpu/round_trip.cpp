// The design at work: storages that keep their addresses while their handles come and go, beside a stream of GEMMs.
//
// Twice as many storages as handles. Each use checks what a storage holds and writes something new. A pager thread takes a
// storage away after its use (tickets passed, unmap, copy out from the handle's home address) and brings it back ahead of
// the next (copy in at home, map). Invariants: a handle is at one storage's address or naked; nothing is unmapped before
// its tickets have passed; a naked handle's copies have passed. Left out: clean blocks, cancelled leaves, early consumers.
#include <condition_variable>
#include <deque>
#include <mutex>

#include "tools.hpp"

namespace gpu {

namespace {

class Tickets {
 public:
  explicit Tickets(CUstream stream) : stream_(stream) { std::atomic_ref<std::uint64_t>(*word_.words()).store(0); }
  std::uint64_t mark() {
    MUST(cuStreamWriteValue64(stream_, reinterpret_cast<CUdeviceptr>(word_.at), ++last_, 0));
    return last_;
  }
  bool passed(std::uint64_t ticket) const { return std::atomic_ref<std::uint64_t>(*word_.words()).load() >= ticket; }

 private:
  const CUstream stream_;
  Pinned word_{4096};
  std::uint64_t last_ = 0;
};

struct Handle {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr home = 0;
};

struct Storage {
  CUdeviceptr at = 0;
  Handle* own = nullptr;  // none while it is away
  bool resident = false;  // mapped at its address; guarded by the pager's mutex, as the queues are
  std::uint64_t seed = 0;
  std::uint64_t ticket = 0;  // of what it waits for in its queue
  void* host = nullptr;
};

class Pager {
 public:
  Pager(std::size_t bytes, const Tickets& compute) : bytes_(bytes), compute_(compute), thread_([this] { loop(); }) {}
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;
  ~Pager() { stop(); }

  // Ends once nothing moves any more.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      running_ = false;
    }
    if (thread_.joinable()) thread_.join();
  }
  void leave(Storage& s, std::uint64_t after) {
    std::lock_guard lock(mutex_);
    s.resident = false;
    s.ticket = after;
    leaving_.push_back(&s);
  }
  void want(Storage& s) {
    std::lock_guard lock(mutex_);
    wanted_.push_back(&s);
  }
  // Waits until the storage is at its address; how long that was.
  double need(Storage& s) {
    const double start = now_us();
    std::unique_lock lock(mutex_);
    mapped_.wait(lock, [&] { return s.resident; });
    return now_us() - start;
  }
  std::vector<double> unmaps, maps;
  std::size_t bytes_out = 0, bytes_in = 0;

 private:
  void loop() {
    CUcontext context = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&context, the_device));
    MUST(cuCtxSetCurrent(context));
    const Stream out, in;
    Tickets outs(out.stream), ins(in.stream);
    for (;;) {
      std::unique_lock lock(mutex_);
      const bool more = running_ || !leaving_.empty() || !going_.empty() || !wanted_.empty() || !coming_.empty();
      if (!more) return;
      bool moved = false;
      if (!leaving_.empty() && compute_.passed(leaving_.front()->ticket)) {
        Storage& s = *take(leaving_);
        lock.unlock();
        const double start = now_us();
        MUST(cuMemUnmap(s.at, bytes_));
        unmaps.push_back(now_us() - start);
        MUST(cuMemcpyDtoHAsync(s.host, s.own->home, bytes_, out.stream));
        s.ticket = outs.mark();
        bytes_out += bytes_;
        lock.lock();
        going_.push_back(&s);
        moved = true;
      }
      if (!going_.empty() && outs.passed(going_.front()->ticket)) {
        Storage& s = *take(going_);
        naked_.push_back(std::exchange(s.own, nullptr));
        moved = true;
      }
      // A storage that is still on its way out is wanted later in the queue than it leaves, so it has no handle by then.
      if (!wanted_.empty() && !naked_.empty() && wanted_.front()->own == nullptr) {
        Storage& s = *take(wanted_);
        s.own = take(naked_);
        lock.unlock();
        MUST(cuMemcpyHtoDAsync(s.own->home, s.host, bytes_, in.stream));
        s.ticket = ins.mark();
        bytes_in += bytes_;
        lock.lock();
        coming_.push_back(&s);
        moved = true;
      }
      if (!coming_.empty() && ins.passed(coming_.front()->ticket)) {
        Storage& s = *take(coming_);
        lock.unlock();
        const double start = now_us();
        map(s.at, bytes_, s.own->handle);
        maps.push_back(now_us() - start);
        lock.lock();
        s.resident = true;
        mapped_.notify_all();
        moved = true;
      }
      lock.unlock();
      if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
  }
  template <typename T>
  static T* take(std::deque<T*>& queue) {
    T* first = queue.front();
    queue.pop_front();
    return first;
  }

  const std::size_t bytes_;
  const Tickets& compute_;
  std::mutex mutex_;
  std::condition_variable mapped_;
  bool running_ = true;
  std::deque<Storage*> leaving_, going_, wanted_, coming_;
  std::deque<Handle*> naked_;
  std::thread thread_;
};

}  // namespace

void round_trip() {
  constexpr std::size_t kStorages = 64, kHandles = 32, kAhead = 24;
  const std::size_t bytes = sized(64), side = sized(32);
  const Pinned pool(kStorages * bytes);
  const CUdeviceptr addresses = reserve(kStorages * bytes);
  const Memory a(side), c(side), bad(2 * kMiB);
  for (const bool moving : {false, true, false, true})
    for (const int gemms : {4, 8, 16}) {
      if (small && gemms > 4) continue;
      const std::size_t resident = moving ? kHandles : kStorages;
      const Stream compute;
      Tickets marks(compute.stream);
      std::vector<Handle> handles(resident);
      std::vector<Storage> storages(kStorages);
      run("fill", compute.stream, {bad.at, 1, 0, 0, 0});
      run("fill", compute.stream, {a.at, side / 8, 7, 0x807F807F807F807Full, 0x3F003F003F003F00ull});
      for (Handle& h : handles) {
        h.handle = create(bytes);
        h.home = reserve(bytes);
        map(h.home, bytes, h.handle);
      }
      for (std::size_t i = 0; i < kStorages; ++i) {
        Storage& s = storages[i];
        s.at = addresses + i * bytes;
        s.host = static_cast<char*>(pool.at) + i * bytes;
        s.seed = i + 1;
        if (i < resident) {
          s.own = &handles[i];
          s.resident = true;
          map(s.at, bytes, s.own->handle);
          fill(s.at, bytes, s.seed, compute.stream);
        } else {
          for (std::size_t w = 0; w < bytes / 8; ++w) static_cast<std::uint64_t*>(s.host)[w] = pattern(w, s.seed);
        }
      }
      compute.wait();
      Pager pager(bytes, marks);
      double late = 0;
      int late_uses = 0;
      const std::size_t uses = (small ? 3 : 8) * kStorages;
      const double start = now_us();
      for (std::size_t use = 0; use < uses; ++use) {
        Storage& s = storages[use % kStorages];
        if (moving) {
          if (const double waited = pager.need(s); waited > 20) {
            late += waited;
            ++late_uses;
          }
        }
        run("check", compute.stream, {s.at, bytes / 8, s.seed, ~0ull, 0, bad.at});
        for (int g = 0; g < gemms; ++g) Gemm::launch(compute.stream, a.at, a.at, c.at);
        s.seed += 1000;
        fill(s.at, bytes, s.seed, compute.stream);
        if (moving) {
          // The first kHandles are here from the start; every later use asks for the storage kAhead uses on.
          pager.leave(s, marks.mark());
          if (use + kAhead >= kHandles) pager.want(storages[(use + kAhead) % kStorages]);
        }
      }
      compute.wait();
      const double took = now_us() - start;
      pager.stop();
      const Pinned seen(4096);
      MUST(cuMemcpyDtoHAsync(seen.at, bad.at, 8, compute.stream));
      compute.wait();
      Line("round_trip").flag("moving", moving).number("gemms_a_use", gemms).text("product", Gemm::real() ? "gemm" : "fma")
          .number("uses", static_cast<double>(uses)).number("us_a_use", took / static_cast<double>(uses)).number("mib", static_cast<double>(bytes / kMiB))
          .number("gb_s_out", static_cast<double>(pager.bytes_out) / took / 1e3).number("gb_s_in", static_cast<double>(pager.bytes_in) / took / 1e3)
          .number("late_uses", late_uses).number("late_us", late).number("wrong_words", static_cast<double>(*seen.words()))
          .durations("unmap", pager.unmaps).durations("map", pager.maps).print();
      for (Storage& s : storages)
        if (s.resident) MUST(cuMemUnmap(s.at, bytes));
      for (Handle& h : handles) {
        MUST(cuMemUnmap(h.home, bytes));
        MUST(cuMemRelease(h.handle));
        MUST(cuMemAddressFree(h.home, bytes));
      }
    }
  MUST(cuMemAddressFree(addresses, kStorages * bytes));
}

}  // namespace gpu
