// Streams, events, and the guard by which PyTorch reaches both.

#include "lagging.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>
#include <utility>

namespace lagging {

void Mark::pass() {
  std::lock_guard lock(mutex_);
  passed_ = true;
  time_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Mark::passed() {
  std::lock_guard lock(mutex_);
  return passed_;
}

void Mark::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return passed_; });
}

namespace {

constexpr c10::StreamId POOL = 32;  // streams besides the default one, given out in turn as CUDA's are

unsigned seed() {
  const char* text = std::getenv("LAGGING_SEED");
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : 0;
}

// The work of one stream, and its thread.
class Queue {
 public:
  explicit Queue(c10::StreamId id) : random_(seed() * 64 + static_cast<unsigned>(id)) {
    std::thread([this] { run(); }).detach();
  }

  void add(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    changed_.notify_one();
  }

  // Called by the queue's own work. For some works the stream keeps up with the host, then it falls far behind.
  void lag() {
    if (works_at_this_pace_ == 0) {
      works_at_this_pace_ = 4 + random_() % 28;
      most_us_ = std::array{1u, 80u, 800u}[random_() % 3];
    }
    --works_at_this_pace_;
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % most_us_));
  }

  // As on a GPU, what went wrong beside the host is told where the host waits next.
  void throw_failure() {
    std::exception_ptr failure;
    {
      std::lock_guard lock(mutex_);
      std::swap(failure, failure_);
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // No operator that a kernel is made of is seen by callbacks, nor its warnings, as of a GPU's kernel.
  void run() {
    struct Unheard : c10::WarningHandler {
      void process(const c10::Warning&) override {}
    } unheard;
    const c10::WarningUtils::WarningHandlerGuard no_warnings(&unheard);
    const at::RecordFunctionGuard unseen(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::AutoGradMode no_gradients(false);
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !works_.empty(); });
        work = std::move(works_.front());
        works_.pop_front();
      }
      try {
        work();
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  std::exception_ptr failure_;
  std::mt19937 random_;
  unsigned works_at_this_pace_ = 0;
  unsigned most_us_ = 0;
};

// Queues are made when first used and never end: memory may be freed as long as the process runs.
struct Queues {
  std::mutex mutex;
  std::array<Queue*, POOL + 1> queues{};
};

Queues& all() {
  static auto* queues = new Queues;
  return *queues;
}

Queue& queue_of(const c10::Stream& stream) {
  std::lock_guard lock(all().mutex);
  Queue*& queue = all().queues.at(static_cast<size_t>(stream.id()));
  if (!queue) queue = new Queue(stream.id());
  return *queue;
}

thread_local c10::StreamId current = 0;

c10::Stream stream_of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device(), id); }

c10::Stream next_of_pool() {
  static std::atomic<c10::StreamId> given{0};
  return stream_of(given++ % POOL + 1);
}

// Records the latest of its marks; null until the first.
struct Event {
  std::shared_ptr<Mark> mark;
};

Mark& mark_of(void* event) { return *static_cast<Event*>(event)->mark; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return DEVICE_TYPE; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return current_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return next_of_pool(); }
  c10::Stream getNewStream(c10::Device, int) const override { return next_of_pool(); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream_of(std::exchange(current, stream.id())); }
  bool queryStream(const c10::Stream& stream) const override { return mark(stream)->passed(); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize_device(); }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    memory().recordStream(pointer, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Event;
    static_cast<Event*>(*event)->mark = mark(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) follow(stream, static_cast<Event*>(event)->mark);
  }
  bool queryEvent(void* event) const override { return !event || mark_of(event).passed(); }
  void synchronizeEvent(void* event) const override {
    if (event) mark_of(event).wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(mark_of(to).time() - mark_of(from).time()).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

c10::Stream current_stream() { return stream_of(current); }

void launch(const c10::Stream& stream, std::function<void()> work) {
  Queue& queue = queue_of(stream);
  queue.add([&queue, work = std::move(work)] {
    queue.lag();
    work();
  });
}

std::shared_ptr<Mark> mark(const c10::Stream& stream) {
  auto mark = std::make_shared<Mark>();
  queue_of(stream).add([mark] { mark->pass(); });
  return mark;
}

void follow(const c10::Stream& stream, std::shared_ptr<Mark> mark) {
  queue_of(stream).add([mark = std::move(mark)] { mark->wait(); });
}

void synchronize(const c10::Stream& stream) {
  mark(stream)->wait();
  queue_of(stream).throw_failure();
}

void synchronize_device() {
  for (c10::StreamId id = 0; id <= POOL; ++id) {
    bool used;
    {
      std::lock_guard lock(all().mutex);
      used = all().queues.at(static_cast<size_t>(id));
    }
    if (used) synchronize(stream_of(id));
  }
}

}  // namespace lagging
