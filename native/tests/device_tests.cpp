// The arena on a GPU's memory, over a fake driver: device memory is real memory, streams are threads that lag behind, and an
// unmap under work that is still queued ends the process.
#include <barrier>
#include <cstring>
#include <random>
#include <thread>

#include "../core/file_tier.hpp"
#include "../device/device_region.hpp"
#include "../device/host_pool.hpp"
#include "../device/staged_tier.hpp"
#include "check.hpp"
#include "fake_driver.hpp"

using namespace ebbtide;

namespace {

constexpr std::size_t kRegionBytes = std::size_t{8} << 30;  // make_arena's

thread_local CUstream current_stream = nullptr;

const Driver& fake_driver() {
  static Driver driver = [] {
    Driver made;
    std::string why = load(made, cuGetProcAddress_v2_fake);
    CHECK(why.empty());
    return made;
  }();
  return driver;
}

CUstream make_stream() {
  CUstream stream = nullptr;
  CHECK(fake_driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  return stream;
}

// On one GPU, with pinned memory below it.
struct Ground {
  Device device{fake_driver(), 0};
  DeviceRegion* region;
  Arena* arena;

  // `host` bytes of pinned memory below it, and the file below that.
  explicit Ground(std::uint64_t limit, std::uint64_t host = 512 * kMiB, Options options = {}) {
    auto made = std::make_unique<DeviceRegion>(device, kRegionBytes, [] { return current_stream; });
    Tiers::List tiers;
    tiers.push_back(std::make_unique<HostPool>(device, host, kRegionBytes));
    tiers.push_back(std::make_unique<StagedTier>(device, std::make_unique<FileTier>(std::vector<std::string>{"/var/tmp"})));
    region = made.get();
    options.huge_region_bytes = kRegionBytes;
    options.small_region_bytes = std::size_t{1} << 30;
    arena = new Arena(options, std::move(tiers), std::move(made));
    arena->set_limits(limit, 0);
  }
  void check() const {
    arena->check_invariants();
    region->check();
    CHECK(region->created_bytes() == arena->counters().reserved);
  }
};

// Leaked, as arenas are: their threads use the device.
Ground& make_ground(std::uint64_t limit, std::uint64_t host = 512 * kMiB, Options options = {}) {
  return *new Ground(limit, host, options);
}

// A kernel on the current stream, within an operator.
void launch(std::vector<fake::Range> touches, std::function<void()> run) {
  CHECK(fake::enqueue(current_stream, std::move(touches), std::move(run)) == CUDA_SUCCESS);
}

fake::Range range(const void* p, std::size_t n, bool write) { return {reinterpret_cast<fake::Address>(p), n, write}; }

void wait_for_device() { CHECK(fake_driver().cuCtxSynchronize() == CUDA_SUCCESS); }

void fill_by_kernel(Arena& arena, void* p, std::size_t n, unsigned seed) {
  const Operand operand[] = {{p, Access::Write, n}};
  arena.enter("fill", operand, Work::Itself);
  launch({range(p, n, true)}, [=] { fill(p, n, seed); });
  arena.exit();
}

void check_by_kernel(Arena& arena, const void* p, std::size_t n, unsigned seed) {
  const Operand operand[] = {{p, Access::Read, n}};
  arena.enter("check", operand, Work::Itself);
  launch({range(p, n, false)}, [=] { CHECK(filled(p, n, seed)); });
  arena.exit();
}

}  // namespace

TEST(on_a_device_contents_leave_and_come_back_at_the_same_address) {
  Ground& g = make_ground(0);
  void* p = g.arena->allocate(3 * kMiB);
  fill_by_kernel(*g.arena, p, 3 * kMiB, 1);
  CHECK(g.arena->evict(p) == 4 * kMiB && g.arena->state(p) == State::Absent);
  g.check();
  check_by_kernel(*g.arena, p, 3 * kMiB, 1);
  CHECK(g.arena->state(p) == State::Clean);
  CHECK(g.arena->evict(p) == 4 * kMiB);  // without a copy
  Counters c = g.arena->counters();
  CHECK(c.written[4] == 3 * kMiB && c.evicted[4] == 6 * kMiB);
  fill_by_kernel(*g.arena, p, 3 * kMiB, 2);
  CHECK(g.arena->state(p) == State::Dirty);
  check_by_kernel(*g.arena, p, 3 * kMiB, 2);
  wait_for_device();
  g.arena->release(p);
  g.check();
}

TEST(on_a_device_what_no_operator_has_seen_never_leaves) {
  Ground& g = make_ground(0);
  void* p = g.arena->allocate(2 * kMiB);
  CHECK(g.arena->evict(p) == 0);
  fill_by_kernel(*g.arena, p, 2 * kMiB, 1);
  CHECK(g.arena->evict(p) == 2 * kMiB);
}

TEST(on_a_device_an_operators_storages_stay_under_those_that_it_calls) {
  Ground& g = make_ground(8 * kMiB);
  void* p = g.arena->allocate(4 * kMiB);
  fill_by_kernel(*g.arena, p, 4 * kMiB, 1);
  const Operand operand[] = {{p, Access::Read, 4 * kMiB}};
  g.arena->enter("outer", operand, Work::Itself);
  g.arena->enter("inner", {}, Work::Itself);
  void* q = g.arena->allocate(6 * kMiB);
  g.arena->exit();
  CHECK(g.arena->state(p) != State::Absent && g.arena->counters().over_budget);
  launch({range(p, 4 * kMiB, false), range(q, 6 * kMiB, true)}, [=] {
    CHECK(filled(p, 4 * kMiB, 1));
    fill(q, 6 * kMiB, 2);
  });
  g.arena->exit();
  check_by_kernel(*g.arena, q, 6 * kMiB, 2);
  wait_for_device();
  g.check();
}

// The second storage's memory is the first one's, which is still being read, on another stream.
TEST(on_a_device_memory_changes_owners_when_its_work_has_run) {
  Ground& g = make_ground(4 * kMiB);
  CUstream first = make_stream(), second = make_stream();
  for (unsigned round = 0; round < 50; ++round) {
    current_stream = first;
    void* p = g.arena->allocate(4 * kMiB);
    fill_by_kernel(*g.arena, p, 4 * kMiB, round);
    check_by_kernel(*g.arena, p, 4 * kMiB, round);
    g.arena->release(p);
    current_stream = round % 2 == 0 ? second : first;
    void* q = g.arena->allocate(4 * kMiB);
    fill_by_kernel(*g.arena, q, 4 * kMiB, ~round);
    check_by_kernel(*g.arena, q, 4 * kMiB, ~round);
    g.arena->release(q);
    g.check();
  }
  wait_for_device();
  CHECK(!g.arena->counters().over_budget && g.region->created_bytes() == 4 * kMiB);
}

TEST(on_a_device_memory_of_another_size_is_given_up_when_its_work_has_run) {
  Ground& g = make_ground(6 * kMiB);
  for (unsigned round = 0; round < 20; ++round) {
    std::size_t n = (round % 2 == 0 ? 6 : 4) * kMiB;
    void* p = g.arena->allocate(n);
    fill_by_kernel(*g.arena, p, n, round);
    check_by_kernel(*g.arena, p, n, round);
    g.arena->release(p);
    g.check();
  }
  wait_for_device();
  CHECK(!g.arena->counters().over_budget);
}

TEST(on_a_device_a_use_makes_what_is_leaving_stay) {
  Ground& g = make_ground(0);
  void* p = g.arena->allocate(8 * kMiB);
  CUstream busy = current_stream = make_stream();
  for (unsigned round = 0; round < 50; ++round) {
    fill_by_kernel(*g.arena, p, 8 * kMiB, round);
    std::thread evictor([&] { g.arena->evict(p); });
    current_stream = busy;
    for (int i = 0; i < 3; ++i) check_by_kernel(*g.arena, p, 8 * kMiB, round);
    evictor.join();
    g.check();
  }
  wait_for_device();
}

TEST(on_a_device_without_memory_left_a_birth_says_so_and_nothing_is_lost) {
  Ground& g = make_ground(0);  // of 1 GiB, the fake's
  void* p = g.arena->allocate(512 * kMiB);
  fill_by_kernel(*g.arena, p, 4096, 1);
  std::string why;
  try {
    g.arena->allocate(768 * kMiB);
  } catch (const ArenaError& error) {
    why = error.what();
  }
  CHECK(why.find("no memory left for 768 MiB") != std::string::npos);
  g.check();
  void* q = g.arena->allocate(256 * kMiB);
  check_by_kernel(*g.arena, p, 4096, 1);
  wait_for_device();
  g.arena->release(q);
  g.check();
}

TEST(on_a_device_what_host_memory_has_no_room_for_goes_to_the_file) {
  Ground& g = make_ground(0, 4 * kMiB);
  void* p = g.arena->allocate(4 * kMiB);
  void* q = g.arena->allocate(11 * kMiB);
  fill_by_kernel(*g.arena, p, 4 * kMiB, 1);
  fill_by_kernel(*g.arena, q, 11 * kMiB, 2);
  CHECK(g.arena->evict(p) == 4 * kMiB && g.arena->tiers_with(p) == bit(1));
  CHECK(g.arena->evict(q) == 12 * kMiB && g.arena->tiers_with(q) == bit(2));
  check_by_kernel(*g.arena, q, 11 * kMiB, 2);
  check_by_kernel(*g.arena, p, 4 * kMiB, 1);
  wait_for_device();
  g.check();
}

TEST(on_a_device_contents_go_from_host_memory_to_the_file_and_back_by_chunks) {
  Ground& g = make_ground(0);
  void* p = g.arena->allocate(11 * kMiB);
  fill_by_kernel(*g.arena, p, 11 * kMiB, 1);
  g.arena->evict(p);
  CHECK(g.arena->copy(p, 1, 2, Then::Drop) && g.arena->tiers_with(p) == bit(2));
  CHECK(g.arena->copy(p, 2, 1, Then::Keep) && g.arena->tiers_with(p) == (bit(1) | bit(2)));
  check_by_kernel(*g.arena, p, 11 * kMiB, 1);
  wait_for_device();
  g.check();
}

TEST(on_a_device_memory_that_nothing_needs_is_given_back_when_asked_for) {
  Ground& g = make_ground(0);
  void* p = g.arena->allocate(4 * kMiB);
  fill_by_kernel(*g.arena, p, 4 * kMiB, 1);
  std::size_t nbytes = 0;
  CHECK(g.arena->base_of(static_cast<char*>(p) + 5, &nbytes) == p && nbytes == 4 * kMiB);
  wait_for_device();
  g.arena->release(p);
  wait_for_device();
  CHECK(g.arena->give_back(1) == 4 * kMiB && g.arena->give_back(1) == 0);
  CHECK(g.arena->base_of(p, &nbytes) == nullptr);
  g.check();
}

// A stream that only the program knows of: record_stream().
TEST(on_a_device_work_on_a_stream_that_was_named_ends_before_memory_leaves) {
  Ground& g = make_ground(0);
  CUstream other = make_stream();
  for (unsigned round = 0; round < 20; ++round) {
    void* p = g.arena->allocate(4 * kMiB);
    fill_by_kernel(*g.arena, p, 4 * kMiB, round);
    wait_for_device();
    CHECK(fake::enqueue(other, {range(p, 4 * kMiB, false)}, [=] { CHECK(filled(p, 4 * kMiB, round)); }) == CUDA_SUCCESS);
    g.arena->used_on(p, other);
    round % 2 == 0 ? void(g.arena->evict(p)) : void();
    g.arena->release(p);
    g.check();
  }
  wait_for_device();
}

// --- stress

namespace {

constexpr std::size_t kMost = 6 * kMiB;

struct Twin {
  char* p;
  CUstream stream;  // that its work is asked for on
  std::vector<char> copy;
};

// The host runs ahead of two streams; what a kernel reads is compared when it runs with what it should be.
class Worker {
 public:
  Worker(Ground& ground, unsigned seed) : g_(ground), random_(seed), streams_{make_stream(), make_stream()} {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) step();
    while (!twins_.empty()) death();
    wait_for_device();
    for (CUevent event : events_) CHECK(fake_driver().cuEventDestroy(event) == CUDA_SUCCESS);
  }

 private:
  void step() {
    switch (random_() % 12) {
      case 0:
      case 1:
        if (twins_.size() < 12) return birth();
        [[fallthrough]];
      case 2:
        return death();
      case 3:
        if (!twins_.empty()) g_.arena->evict(any().p);
        return;
      case 4: {
        if (twins_.empty()) return;
        const Operand operand[] = {{any().p}};
        return g_.arena->prefetch(operand);
      }
      case 5:
        return change_stream();
      default:
        return in_operator();
    }
  }

  Twin& any() { return twins_[random_() % twins_.size()]; }

  void birth() {
    current_stream = streams_[random_() % 2];
    std::size_t n = 2 * kMiB * (1 + random_() % 3) - random_() % kMiB;
    Twin twin{static_cast<char*>(g_.arena->allocate(n)), current_stream, std::vector<char>(n)};
    auto value = static_cast<int>(random_() % 256);
    std::memset(twin.copy.data(), value, n);
    char* p = twin.p;
    const Operand operand[] = {{p, Access::Write, n}};
    g_.arena->enter("birth", operand, Work::Itself);
    launch({range(p, n, true)}, [=] { std::memset(p, value, n); });
    g_.arena->exit();
    twins_.push_back(std::move(twin));
  }

  void death() {
    if (twins_.empty()) return;
    std::swap(any(), twins_.back());
    Twin& t = twins_.back();
    current_stream = t.stream;
    check(t, 0, t.copy.size());
    g_.arena->release(t.p);
    twins_.pop_back();
  }

  void check(const Twin& t, std::size_t from, std::size_t n) {
    const Operand operand[] = {{t.p, Access::Read, n}};
    g_.arena->enter("check", operand, Work::Itself);
    launch_check(t, from, n);
    g_.arena->exit();
  }

  void launch_check(const Twin& t, std::size_t from, std::size_t n) {
    std::vector<char> expected(t.copy.begin() + static_cast<std::ptrdiff_t>(from),
                               t.copy.begin() + static_cast<std::ptrdiff_t>(from + n));
    const char* p = t.p + from;
    launch({range(p, n, false)}, [p, expected] { CHECK(std::memcmp(p, expected.data(), expected.size()) == 0); });
  }

  void launch_write(Twin& t) {
    std::size_t from = random_() % t.copy.size(), n = std::min<std::size_t>(t.copy.size() - from, 1 + random_() % 5000);
    auto value = static_cast<int>(random_() % 256);
    std::memset(t.copy.data() + from, value, n);
    char* p = t.p + from;
    launch({range(p, n, true)}, [=] { std::memset(p, value, n); });
  }

  // What comes on the other stream is ordered after what came on this one, as a program would have it.
  void change_stream() {
    if (twins_.empty()) return;
    Twin& t = any();
    CUevent event = nullptr;
    CHECK(fake_driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    CHECK(fake_driver().cuEventRecord(event, t.stream) == CUDA_SUCCESS);
    t.stream = t.stream == streams_[0] ? streams_[1] : streams_[0];
    CHECK(fake_driver().cuStreamWaitEvent(t.stream, event, 0) == CUDA_SUCCESS);
    events_.push_back(event);
  }

  // Reads one, writes another, with scratch that dies before its kernel has run.
  void in_operator() {
    if (twins_.empty()) return;
    Twin& a = any();
    Twin& b = any();
    bool with_b = &a != &b && a.stream == b.stream;
    current_stream = a.stream;
    std::vector<Operand> operands{{a.p, Access::ReadWrite}};
    if (with_b) operands.push_back({b.p, Access::Read});
    g_.arena->enter("stress", operands, Work::Itself);
    std::size_t n = 2 * kMiB * (1 + random_() % 2);
    auto* scratch = static_cast<char*>(g_.arena->allocate(n));
    launch({range(scratch, n, true)}, [=] { std::memset(scratch, 3, n); });
    launch_write(a);
    std::size_t from = random_() % a.copy.size();
    launch_check(a, from, std::min<std::size_t>(a.copy.size() - from, 5000));
    if (with_b) launch_check(b, 0, std::min<std::size_t>(b.copy.size(), 5000));
    launch({range(scratch, n, false)}, [=] { CHECK(scratch[0] == 3 && scratch[n - 1] == 3); });
    g_.arena->release(scratch);
    g_.arena->exit();
  }

  Ground& g_;
  std::mt19937 random_;
  CUstream streams_[2];
  std::vector<Twin> twins_;
  std::vector<CUevent> events_;
};

}  // namespace

TEST(random_operations_agree_with_plain_memory_on_a_device) {
  constexpr int kThreads = 3;
  const char* asked = std::getenv("EBBTIDE_STRESS_OPERATIONS");
  int operations = (asked != nullptr ? std::atoi(asked) : 100000) / 10;  // each moves megabytes
  Options options;
  options.chaos_rate = 0.02;
  options.chaos_seed = 11;
  std::uint64_t limit = kThreads * (2 * kMost + 4 * kMiB);  // one operator of each thread fits
  Ground& g = make_ground(limit, 16 * kMiB, options);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Worker(g, static_cast<unsigned>(t) + 1).run(operations / kThreads);
      --running;
    });
  }
  std::mt19937 random(99);
  while (running > 0) {
    g.arena->check_invariants();
    if (random() % 10 == 0) g.arena->set_limits(limit + random() % limit, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  for (std::thread& thread : threads) thread.join();
  wait_for_device();
  g.check();
  Counters c = g.arena->counters();
  std::printf("  moved out %.2f GB, in %.2f GB, %llu evictions cancelled by a use\n", static_cast<double>(c.evicted[4]) * 1e-9,
              static_cast<double>(c.fetched[4]) * 1e-9, static_cast<unsigned long long>(c.cancelled));
  CHECK(c.live == 0 && c.evicted[4] > 0 && c.fetched[4] > 0 && c.cancelled > 0 && !c.over_budget);
}
