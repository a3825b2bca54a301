// The front between a stand-in for PyTorch's native allocator and one for the arena (stub.hpp). Exit status 0: passed.
#include <functional>
#include <stdexcept>
#include <thread>

#include "cuda/face.hpp"
#include "cuda/front.hpp"
#include "stub.hpp"
#include "tests/check.hpp"

using namespace stub;
using ebbtide::Front;

namespace {

constexpr std::size_t kLarge = 4 * kMiB;  // from here on the arena serves
constexpr DeviceIndex kOurs = 0, kOther = 1;

Front& front() { return *ebbtide::the_front(); }

bool is_arenas(const DataPtr& data) { return stub_arena_face()->contains(data.get()); }

// What is set for as long as it is there.
template <typename Value, typename Variable>
class Set {
 public:
  Set(Variable& variable, Value value) : variable_(variable), before_(variable) { variable_ = value; }
  ~Set() { variable_ = before_; }

 private:
  Variable& variable_;
  const Value before_;
};
template <typename Value, typename Variable>
Set(Variable&, Value) -> Set<Value, Variable>;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(another_backend_is_refused_by_name) {
  pytorchs().called = "cudaMallocAsync";
  std::string said = error_of([] { ebbtide::install_front(*stub_arena_face(), kOurs, kLarge); });
  CHECK(has(said, "\"cudaMallocAsync\"") && has(said, "PYTORCH_CUDA_ALLOC_CONF") && has(said, "change_current_allocator"));
  CHECK(ebbtide::the_front() == nullptr && native::get() == &pytorchs());
  pytorchs().called = "native";
}

TEST(before_it_is_there_the_face_asks_of_the_current_gpu) {
  pytorchs().stats.reserved_bytes[0].current = 5;
  pytorchs().take_notes();
  Set there(device, kOther);
  CHECK(ebbtide::kCudaFace.stream() == handle(stream));
  CHECK(ebbtide::kCudaFace.outside_bytes() == 5);
  CHECK(pytorchs().take_notes() == std::vector<std::string>{"getDeviceStats 1"});
  pytorchs().stats = {};
}

// As a recorder asks for it, which stands in front of nothing.
TEST(whoever_asks_is_told_of_what_pytorch_gives_on_one_gpu) {
  static std::vector<std::pair<void*, std::size_t>> seen;  // an end has 0 bytes
  static constexpr ebbtide::Births kSeen{.born = [](void* at, std::size_t bytes) { seen.emplace_back(at, bytes); },
                                         .ended = [](void* at) { seen.emplace_back(at, 0); }};
  ebbtide::kCudaFace.tell(kOther, &kSeen);
  void *storage = nullptr, *scratch = nullptr;
  {
    Set there(device, kOther);
    DataPtr data = pytorchs().allocate(7);
    storage = data.get();
    scratch = pytorchs().raw_alloc(5);
    pytorchs().raw_delete(scratch);
  }
  pytorchs().raw_delete(pytorchs().raw_alloc(6));  // of another GPU
  using Seen = decltype(seen);
  CHECK((seen == Seen{{storage, 7}, {scratch, 5}, {scratch, 0}, {storage, 0}}));
  pytorchs().take_notes();
  CHECK(ebbtide::kCudaFace.stream() != nullptr && ebbtide::kCudaFace.outside_bytes() == 0);
  CHECK(pytorchs().take_notes() == std::vector<std::string>{"getDeviceStats 1"});  // of that GPU, whatever is current

  seen.clear();
  ebbtide::kCudaFace.tell(kOurs, &kSeen);
  pytorchs().raw_delete(scratch = pytorchs().raw_alloc(6));
  CHECK((seen == Seen{{scratch, 6}, {scratch, 0}}));  // once, though it was asked for twice
  ebbtide::kCudaFace.tell(kOurs, nullptr);
  pytorchs().raw_delete(pytorchs().raw_alloc(6));
  CHECK(seen.size() == 2);
}

TEST(it_is_put_where_every_client_looks_once) {
  ebbtide::install_front(*stub_arena_face(), kOurs, kLarge);
  CHECK(native::get() == &front());
  CHECK(c10::GetAllocator(c10::kCUDA) == &front());
  CHECK(has(error_of([] { ebbtide::install_front(*stub_arena_face(), kOurs, kLarge); }), "already"));
}

// On another GPU than the arena's: the same call of both has the same notes.
TEST(every_call_is_forwarded_with_its_arguments) {
  front().set_on(true);
  Set there(device, kOther);
  int calls = 0;
  auto same = [&](const std::function<void(native::CUDAAllocator&)>& call) {
    pytorchs().take_notes();
    call(pytorchs());
    auto theirs = pytorchs().take_notes();
    call(front());
    auto ours = pytorchs().take_notes();
    CHECK(ours == theirs && !ours.empty());
    ++calls;
  };
  char storage[8] = {};
  std::size_t bytes = 0;
  std::string text = "text";
  MempoolId_t pool{3, 4};
  using A = native::CUDAAllocator;
  same([](A& a) { a.allocate(2 * kLarge); });
  same([](A& a) { a.is_simple_data_ptr(DataPtr(nullptr, c10::Device(c10::kCUDA, kOther))); });
  same([&](A& a) { a.copy_data(storage, storage + 1, 2); });
  same([](A& a) { CHECK(a.initialized()); });
  same([&](A& a) { a.emptyCache(pool); });
  same([](A& a) { a.getDeviceStats(kOther); });
  same([](A& a) { a.resetAccumulatedStats(kOther); });
  same([](A& a) { a.resetPeakStats(kOther); });
  same([](A& a) { CHECK(a.getMemoryInfo(kOther).second == total_bytes); });
  same([](A& a) { a.raw_delete(a.raw_alloc(kLarge)); });
  same([](A& a) { a.raw_delete(a.raw_alloc_with_stream(kLarge, handle(9))); });
  same([](A& a) { a.init(2); });
  same([](A& a) { CHECK(a.getMemoryFraction(kOther) == 1); });
  same([](A& a) { a.setMemoryFraction(1, kOther); });
  same([](A& a) { a.getExpandableSegmentSizes(kOther); });
  same([](A& a) { a.enable(true); });
  same([](A& a) { CHECK(a.isEnabled()); });
  same([&](A& a) { a.cacheInfo(kOther, &bytes); });
  CHECK(bytes == 77);
  same([&](A& a) { CHECK(a.getBaseAllocation(storage, &bytes) == storage && bytes == 1); });
  same([&](A& a) { a.recordStream(DataPtr(storage, c10::Device(c10::kCUDA, kOther)), stream_of(kOther, 8)); });
  same([&](A& a) { a.recordStream(DataPtr(storage, c10::Device(c10::kCUDA, kOther)), stream_of(kOther, 8).unwrap()); });
  same([&](A& a) { CHECK(a.snapshot(pool, false).segments.size() == 1); });
  same([&](A& a) { a.beginAllocateToPool(kOther, pool, [](cudaStream_t) { return true; }); });
  same([&](A& a) { a.endAllocateToPool(kOther, pool); });
  same([&](A& a) { a.releasePool(kOther, pool); });
  same([&](A& a) { CHECK(a.getPoolUseCount(kOther, pool) == 3); });
  same([&](A& a) { a.createOrIncrefPool(kOther, pool, nullptr); });
  same([&](A& a) { a.setUseOnOOM(kOther, pool, true); });
  same([&](A& a) { a.setNoSplit(kOther, pool); });
  same([&](A& a) { CHECK(a.checkPoolLiveAllocations(kOther, pool, {storage})); });
  same([&](A& a) { a.shareIpcHandle(storage); });
  same([](A& a) { a.getIpcDevPtr("handle"); });
  same([](A& a) { CHECK(a.isHistoryEnabled()); });
  same([](A& a) { a.recordHistory(true, nullptr, 5, native::RecordContext::ALLOC, true, {"a"}); });
  same([](A& a) { a.recordAnnotation({{"a", "b"}}); });
  same([&](A& a) { a.pushCompileContext(text); });
  same([](A& a) { a.popCompileContext(); });
  same([](A& a) { a.setUserMetadata("data"); });
  same([](A& a) { CHECK(a.getUserMetadata() == "theirs"); });
  same([](A& a) { a.attachOutOfMemoryObserver({}); });
  same([](A& a) { a.attachAllocatorTraceTracker({}); });
  same([](A& a) { a.enablePeerAccess(kOther, kOurs); });
  same([&](A& a) { a.memcpyAsync(storage, 1, storage + 4, 0, 4, handle(2), false); });
  same([&](A& a) { a.getCheckpointState(kOther, pool); });
  same([](A& a) { a.setCheckpointPoolState(kOther, nullptr); });
#if TORCH_VERSION_MINOR >= 12
  same([&](A& a) { a.getContextForPointer(storage); });
  same([](A& a) { a.attachOomRejectionObserver({}); });
#endif
#if TORCH_VERSION_MINOR >= 13
  same([](A& a) { a.markCaptureBegin(kOther); });
  same([](A& a) { a.markCaptureEnd(kOther); });
  same([&](A& a) { a.allocateWithAddress(kLarge, storage); });
#endif
#if TORCH_VERSION_MINOR >= 14
  same([](A& a) { CHECK(a.supportsUserMetadata()); });
  same([&](A& a) { a.annotateMemory(storage, "data"); });
#endif
  CHECK(front().raw_deleter() == pytorchs().raw_deleter());
  CHECK(front().name() == "native");
  CHECK(calls >= 45 && pytorchs().live() == 0);
}

TEST(large_storages_of_its_gpu_are_the_arenas_while_it_is_on) {
  std::uint64_t served = front().served();
  front().set_on(false);
  CHECK(!is_arenas(front().allocate(kLarge)));
  front().set_on(true);
  CHECK(!is_arenas(front().allocate(kLarge - 1)));
  CHECK(!is_arenas(front().allocate(0)));
  CHECK(is_arenas(front().allocate(kLarge)));
  Set there(device, kOther);
  CHECK(!is_arenas(front().allocate(kLarge)));
  CHECK(front().served() == served + 1);
}

TEST(both_kinds_live_side_by_side_and_free_themselves) {
  DataPtr theirs = pytorchs().allocate(kLarge), small = front().allocate(8), ours = front().allocate(kLarge);
  DataPtr moved = std::move(ours);
  CHECK(arena().live.size() == 1 && pytorchs().live() == 2);
  CHECK(front().is_simple_data_ptr(moved) && moved.device() == c10::Device(c10::kCUDA, kOurs));
  front().set_on(false);
  theirs.clear(), small.clear();
  CHECK(arena().live.size() == 1 && pytorchs().live() == 0);
  moved.clear();
  CHECK(arena().live.empty());
  front().set_on(true);
}

TEST(raw_memory_is_never_the_arenas_and_either_can_be_deleted_by_address) {
  void* raw = front().raw_alloc(kLarge);
  CHECK(!stub_arena_face()->contains(raw));
  front().raw_delete(raw);
  front().raw_delete(front().allocate(kLarge).release_context());
  CHECK(arena().live.empty() && pytorchs().live() == 0);
  // By the native deleter it cannot be: that says so, and nothing is lost.
  void* at = front().raw_allocate(kLarge);
  CHECK(has(error_of([&] { front().raw_deallocate(at); }), "invalid device pointer"));
  front().raw_delete(at);
}

TEST(what_a_pool_takes_is_left_to_it) {
  MempoolId_t graph{1, 0}, threads{0, 2};
  auto here = std::this_thread::get_id();
  front().beginAllocateToPool(kOurs, graph, [](cudaStream_t on) { return on == handle(5); });
  CHECK(is_arenas(front().allocate(kLarge)));
  {
    Set on(stream, 5);
    CHECK(!is_arenas(front().allocate(kLarge)));
  }
  front().beginAllocateToPool(kOurs, threads, [here](cudaStream_t) { return std::this_thread::get_id() == here; });
  CHECK(!is_arenas(front().allocate(kLarge)));
  std::thread([] { CHECK(is_arenas(front().allocate(kLarge))); }).join();
  front().endAllocateToPool(kOurs, graph);
  CHECK(!is_arenas(front().allocate(kLarge)));
  front().endAllocateToPool(kOurs, threads);
  Set on(stream, 5);
  CHECK(is_arenas(front().allocate(kLarge)));
  // Another GPU's, and one that PyTorch refused.
  front().beginAllocateToPool(kOther, graph, [](cudaStream_t) { return true; });
  CHECK(is_arenas(front().allocate(kLarge)));
  front().endAllocateToPool(kOther, graph);
  pytorchs().refuses = true;
  CHECK(has(error_of([&] { front().beginAllocateToPool(kOurs, graph, [](cudaStream_t) { return true; }); }), "no more pools"));
  CHECK(is_arenas(front().allocate(kLarge)));
}

TEST(while_a_stream_is_captured_its_storages_are_left_alone) {
  std::uint64_t left = front().left_alone();
  Set on(stream, 6);
  {
    Set captured(capturing, std::int64_t{6});
    CHECK(ebbtide::kCudaFace.captures());
    CHECK(!is_arenas(front().allocate(kLarge)));
    Set elsewhere(stream, 7);
    CHECK(!ebbtide::kCudaFace.captures());
    CHECK(is_arenas(front().allocate(kLarge)));
  }
  {
    Set error(capturing_error, cudaErrorStreamCaptureImplicit);
    CHECK(!is_arenas(front().allocate(kLarge)));
    CHECK(last_error == cudaSuccess);
  }
  CHECK(!ebbtide::kCudaFace.captures() && is_arenas(front().allocate(kLarge)));
  CHECK(front().left_alone() == left + 2);
}

TEST(streams_are_noted_by_whose_storage_it_is) {
  DataPtr ours = front().allocate(kLarge), theirs = front().allocate(8);
  void* at = ours.get();
  pytorchs().take_notes();
  front().recordStream(ours, stream_of(kOurs, 11));
  front().recordStream(ours, stream_of(kOurs, 12).unwrap());
  CHECK((arena().streams[at] == std::set<CUstream>{handle(11), handle(12)}));
  CHECK(pytorchs().take_notes().empty());
  front().recordStream(theirs, stream_of(kOurs, 13));
  front().recordStream(DataPtr(), stream_of(kOurs, 13));
  CHECK(pytorchs().take_notes().size() == 2);
}

TEST(a_storage_of_the_arena_is_known_by_any_address_in_it) {
  DataPtr ours = front().allocate(kLarge);
  char* inside = static_cast<char*>(ours.get()) + 100;
  std::size_t bytes = 0;
  CHECK(front().getBaseAllocation(inside, &bytes) == ours.get() && bytes == kLarge);
  std::string said = error_of([&] { front().shareIpcHandle(inside); });
  CHECK(has(said, "torch.cuda.use_mem_pool(torch.cuda.MemPool())") && has(said, "clone()"));
  int before = copies_that_name_both;
  char other[8];
  pytorchs().take_notes();
  for (bool peers : {false, true}) {
    front().memcpyAsync(inside, 0, other, 1, 8, handle(1), peers);
    front().memcpyAsync(other, 1, inside, 0, 8, handle(1), peers);
  }
  CHECK(copies_that_name_both == before + 4 && pytorchs().take_notes().empty());
  front().memcpyAsync(inside, 0, other, 0, 8, handle(1), false);
  CHECK(copies_that_name_both == before + 4 && pytorchs().take_notes().size() == 1);
}

TEST(pytorch_gets_back_what_it_lacks_and_no_more) {
  arena().parked = 1000 * kMiB, arena().given_back = 0;
  DataPtr small = front().allocate(8);  // there is enough
  CHECK(arena().given_back == 0);
  Set little(free_bytes, 40 * kMiB);
  DataPtr larger = front().allocate(3 * kMiB);  // 2 * 3 + 32 of 40
  CHECK(arena().given_back == 0);
  void* raw = front().raw_alloc(100 * kMiB);
  CHECK(arena().given_back == (2 * 100 + 32 - 40) * kMiB);
  front().raw_delete(raw);
  pytorchs().raw_delete(pytorchs().raw_alloc(8));  // of who knew PyTorch's allocator before: the least is known
  CHECK(arena().given_back == (2 * 100 + 32 - 40) * kMiB);
  {
    Set there(device, kOther);
    front().raw_delete(front().raw_alloc(100 * kMiB));
    CHECK(arena().given_back == (2 * 100 + 32 - 40) * kMiB);
  }
  pytorchs().take_notes();
  front().emptyCache({0, 0});
  CHECK(arena().parked == 0 && pytorchs().take_notes() == std::vector<std::string>{"emptyCache 0 0"});
}

TEST(statistics_are_sums) {
  auto& stats = pytorchs().stats;
  stats.allocated_bytes[0] = {10, 20, 30, 20};
  stats.reserved_bytes[0] = {100, 200, 300, 200};
  front().resetPeakStats(kOurs), front().resetAccumulatedStats(kOurs);
  {
    DataPtr one = front().allocate(kLarge), two = front().allocate(2 * kLarge);
    arena().parked = 7;
    auto now = front().getDeviceStats(kOurs);
    auto large = static_cast<std::int64_t>(kLarge);
    CHECK(now.allocated_bytes[0].current == 10 + 3 * large && now.allocated_bytes[2].current == 3 * large);
    CHECK(now.reserved_bytes[0].current == 100 + 3 * large + 7);
    CHECK(now.allocation[0].current == 2 && now.requested_bytes[0].current == 3 * large);
    two.clear();
    now = front().getDeviceStats(kOurs);
    CHECK(now.allocated_bytes[0].current == 10 + large && now.allocated_bytes[0].peak == 20 + 3 * large);
    CHECK(now.allocated_bytes[0].allocated == 30 + 3 * large && now.allocated_bytes[0].freed == 20 + 2 * large);
    front().resetPeakStats(kOurs), front().resetAccumulatedStats(kOurs);
    now = front().getDeviceStats(kOurs);
    CHECK(now.allocated_bytes[0].peak == 20 + large && now.allocated_bytes[0].allocated == 30);
    CHECK(front().getDeviceStats(kOther).allocated_bytes[0].current == 10);
    CHECK(ebbtide::kCudaFace.outside_bytes() == 100);
    CHECK(front().snapshot({0, 0}, true).segments.size() == 1);
  }
  arena().parked = 0;
  stats = {};
  std::size_t largest = 0;
  front().cacheInfo(kOurs, &largest);
  CHECK(largest == 77);
  front().set_largest_block(5 * kMiB);
  front().cacheInfo(kOurs, &largest);
  CHECK(largest == 5 * kMiB);
  front().cacheInfo(kOther, &largest);
  CHECK(largest == 77);
  front().set_largest_block(0);
}

TEST(where_the_arena_has_no_room_the_error_is_pytorchs) {
  Set none(arena().full, true);
  bool caught = false;
  try {
    front().allocate(kLarge);
  } catch (const c10::OutOfMemoryError&) {
    caught = true;
  }
  CHECK(caught && front().getDeviceStats(kOurs).allocation[0].current == 0);
  CHECK(!is_arenas(front().allocate(8)));
}

TEST(a_fraction_below_the_budget_is_refused_at_either_moment) {
  Set all(total_bytes, std::size_t{80} << 30);
  pytorchs().fraction = 0.5;
  std::string said = error_of([] { front().set_budget(std::uint64_t{60} << 30); });
  CHECK(has(said, "60.00 GiB") && has(said, "40.00 GiB") && has(said, "a fraction of 0.75 or more"));
  pytorchs().fraction = 1;
  front().set_budget(std::uint64_t{60} << 30);
  CHECK(has(error_of([] { front().setMemoryFraction(0.7, kOurs); }), "56.00 GiB"));
  CHECK(pytorchs().fraction == 1);
  front().setMemoryFraction(0.8, kOurs);
  front().setMemoryFraction(0.1, kOther);
  CHECK(pytorchs().fraction == 0.1);
  front().set_budget(0);
  pytorchs().fraction = 1;
}

TEST(threads_may_do_all_of_it_at_once) {
  auto work = [](unsigned seed) {
    stream = 100 + seed;
    std::vector<DataPtr> live(8);
    MempoolId_t pool{seed, 1};
    bool pooled = false;
    for (unsigned i = 0; i < 3000; ++i) {
      seed = seed * 1664525u + 1013904223u;
      unsigned choice = seed >> 24;
      DataPtr& one = live[(seed >> 16) % live.size()];
      if (choice < 160) {
        one = front().allocate(choice % 2 == 0 ? kLarge : 8);
      } else if (choice < 200) {
        if (one) front().recordStream(one, stream_of(kOurs, 1 + choice));
      } else if (choice < 220) {
        pooled ? front().endAllocateToPool(kOurs, pool)
               : front().beginAllocateToPool(kOurs, pool, [on = handle(stream)](cudaStream_t s) { return s == on; });
        pooled = !pooled;
      } else if (choice < 230) {
        front().emptyCache({0, 0});
      } else if (choice < 240) {
        front().set_on(choice % 3 != 0);
      } else {
        front().getDeviceStats(kOurs);
        ebbtide::kCudaFace.outside_bytes();
      }
    }
    if (pooled) front().endAllocateToPool(kOurs, pool);
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (auto& thread : threads) thread.join();
  front().set_on(true);
  CHECK(arena().live.empty() && pytorchs().live() == 0);
  CHECK(front().getDeviceStats(kOurs).allocated_bytes[0].current == 0);
  CHECK(is_arenas(front().allocate(kLarge)));
}

int main() {
  for (const Test& test : tests()) {
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
}
