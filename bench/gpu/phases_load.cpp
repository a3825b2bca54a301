// U2, U9, U10: what moving costs others, what the link gives, and how the host learns that work has ended.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools.hpp"

namespace gpu {

namespace {

void in_context() {
  CUcontext context = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&context, the_device));
  MUST(cuCtxSetCurrent(context));
}

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(small ? seconds / 50 : seconds)); }

// Unmaps and maps one handle so many times a second from a thread of its own, on addresses that nobody else uses.
class Churn {
 public:
  explicit Churn(double rate) : rate_(rate), thread_([this] { loop(); }) {}
  ~Churn() { stop(); }
  void stop() {
    running_ = false;
    if (thread_.joinable()) thread_.join();
  }
  std::vector<double> rounds;  // for whoever has stopped it

 private:
  void loop() {
    in_context();
    const Memory block(sized(64));
    double next = now_us();
    while (running_ && rate_ > 0) {
      const double start = now_us();
      MUST(cuMemUnmap(block.at, block.bytes));
      map(block.at, block.bytes, block.handle);
      rounds.push_back(now_us() - start);
      next = std::max(next + 1e6 / rate_, now_us() - 1e5);
      while (running_ && now_us() < next) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  const double rate_;
  std::atomic<bool> running_{true};
  std::thread thread_;
};

// Does a call return while a kernel that has nothing to do with it runs on another stream?
void waits_for_others() {
  const Stream other, copies;
  const std::size_t bytes = sized(64);
  const CUdeviceptr at = reserve(bytes);
  const auto first = create(bytes);
  map(at, bytes, first);
  Pinned host(bytes);
  run("spin", other.stream, {1000});
  other.wait();
  CUmemGenericAllocationHandle made = 0;
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  const auto one = [&](const char* call, const std::function<void()>& body) {
    run("spin", other.stream, {200'000'000});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const double start = now_us();
    body();
    const double took = now_us() - start;
    const bool returned = driver.cuStreamQuery(other.stream) == CUDA_ERROR_NOT_READY;
    other.wait();
    Line("beside_a_long_kernel").text("call", call).number("us", took).flag("returned_while_it_ran", returned).print();
  };
  one("unmap", [&] { MUST(cuMemUnmap(at, bytes)); });
  one("map", [&] { MUST(cuMemMap(at, bytes, 0, first, 0)); });
  one("access", [&] { give_access(at, bytes); });
  one("to_read_only", [&] { give_access(at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ); });
  one("create", [&] { made = create(bytes); });
  one("release", [&] { MUST(cuMemRelease(made)); });
  one("register", [&] { MUST(cuMemHostRegister(pages, bytes, CU_MEMHOSTREGISTER_PORTABLE)); });
  one("unregister", [&] { MUST(cuMemHostUnregister(pages)); });
  one("copy_out", [&] { MUST(cuMemcpyDtoHAsync(host.at, at, bytes, copies.stream)); copies.wait(); });
  munmap(pages, bytes);
  MUST(cuMemUnmap(at, bytes));
  MUST(cuMemRelease(first));
}

enum class Way { kIn, kOut, kBoth };

// Bytes a second each way, in copies of one size, so many in flight.
double gigabytes(Way way, CUdeviceptr on_device, void* on_host, std::size_t window, std::size_t each, double seconds) {
  const Stream in, out;
  const std::size_t half = window / 2;
  std::size_t sent = 0;
  const double start = now_us();
  do {
    for (std::size_t at = 0; at + each <= half; at += each) {
      char* host = static_cast<char*>(on_host);
      if (way != Way::kOut) MUST(cuMemcpyHtoDAsync(on_device + at, host + at, each, in.stream));
      if (way != Way::kIn) MUST(cuMemcpyDtoHAsync(host + half + at, on_device + half + at, each, out.stream));
      sent += each;
    }
    in.wait();
    out.wait();
  } while (now_us() - start < (small ? 2e3 : seconds * 1e6));
  return static_cast<double>(sent) / (now_us() - start) / 1e3;
}

struct HostWindow {
  std::string kind;
  void* at = nullptr;
};

void touch(char* from, std::size_t bytes, unsigned threads) {
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t)
    all.emplace_back([=] { for (std::size_t i = bytes / threads * t; i < bytes / threads * (t + 1); i += 4096) from[i] = 1; });
  for (std::thread& thread : all) thread.join();
}

void* pages_of(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) stop("no host memory");
  madvise(at, bytes, MADV_HUGEPAGE);
  return at;
}

void registration() {
  const std::size_t bytes = sized(4096);
  const unsigned most = std::max(1u, std::thread::hardware_concurrency());
  for (const bool touched : {false, true})
    for (const unsigned threads : {1u, most}) {
      char* at = static_cast<char*>(pages_of(bytes));
      double touching = now_us();
      if (touched) touch(at, bytes, threads);
      touching = now_us() - touching;
      const double start = now_us();
      std::vector<std::thread> all;
      for (unsigned t = 0; t < threads; ++t)
        all.emplace_back([=] { in_context(); MUST(cuMemHostRegister(at + bytes / threads * t, bytes / threads, CU_MEMHOSTREGISTER_PORTABLE)); });
      for (std::thread& thread : all) thread.join();
      const double took = now_us() - start;
      for (unsigned t = 0; t < threads; ++t) MUST(cuMemHostUnregister(at + bytes / threads * t));
      munmap(at, bytes);
      Line line("register");
      line.flag("touched_before", touched).number("threads", threads).number("mib", static_cast<double>(bytes / kMiB))
          .number("gb_s", static_cast<double>(bytes) / took / 1e3);
      if (touched) line.number("touch_gb_s", static_cast<double>(bytes) / touching / 1e3);
      line.print();
    }
  const double start = now_us();
  const Pinned allocated(bytes);
  Line("host_alloc").number("mib", static_cast<double>(bytes / kMiB)).number("gb_s", static_cast<double>(bytes) / (now_us() - start) / 1e3).print();
}

void disk(const std::string& folder) {
  const std::size_t bytes = sized(1024), each = 4 * kMiB < bytes ? 4 * kMiB : bytes;
  const std::string path = folder + "/probe.spill";
  char* at = static_cast<char*>(pages_of(bytes));
  touch(at, bytes, 1);
  MUST(cuMemHostRegister(at, bytes, CU_MEMHOSTREGISTER_PORTABLE));
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0) {
    Line("disk").text("answer", "O_DIRECT refused").print();
  } else {
    unlink(path.c_str());
    bool whole = true;
    const auto pass = [&](bool write) {
      const double start = now_us();
      for (std::size_t done = 0; done < bytes; done += each) {
        const auto moved = write ? pwrite(file, at + done, each, static_cast<off_t>(done)) : pread(file, at + done, each, static_cast<off_t>(done));
        whole = whole && moved == static_cast<ssize_t>(each);
      }
      return static_cast<double>(bytes) / (now_us() - start) / 1e3;
    };
    const double written = pass(true), read = pass(false);
    Line("disk").flag("whole", whole).number("write_gb_s", written).number("read_gb_s", read).number("threads", 1).print();
    close(file);
  }
  MUST(cuMemHostUnregister(at));
  munmap(at, bytes);
}

}  // namespace

void stalls() {
  waits_for_others();
  for (const Kind kind : {Kind::kGemm, Kind::kBandwidth, Kind::kTiny})
    for (const double rate : {0.0, 500.0, 1000.0, 2000.0, 4000.0, 0.0}) {
      Load load(kind);
      Churn churn(rate);
      const double start = now_us();
      const double pieces = rate_of(load, [] { pause(1.0); });
      churn.stop();
      const double seconds = (now_us() - start) / 1e6;
      Line("stall").text("load", name_of(kind)).number("asked_rounds_s", rate).number("rounds_s", static_cast<double>(churn.rounds.size()) / seconds)
          .number("pieces_s", pieces).durations("launch", load.launches).durations("round", churn.rounds).print();
    }
}

void link(const std::string& folder) {
  registration();
  const std::size_t window = sized(1024);
  const Memory block(window);
  const Pinned allocated(window);
  void* registered = pages_of(window);
  touch(static_cast<char*>(registered), window, 1);
  MUST(cuMemHostRegister(registered, window, CU_MEMHOSTREGISTER_PORTABLE));
  std::vector<HostWindow> windows{{"registered", registered}, {"host_alloc", allocated.at}};
  const CUmemAllocationProp prop = host_memory();
  CUmemGenericAllocationHandle host = 0;
  const CUresult made = driver.cuMemCreate(&host, window, &prop, 0);
  if (made == CUDA_SUCCESS) {
    const CUdeviceptr at = reserve(window);
    MUST(cuMemMap(at, window, 0, host, 0));
    const CUresult access = set_access(at, window, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, true);
    if (access == CUDA_SUCCESS) windows.push_back({"host_numa", reinterpret_cast<void*>(at)});
    Line("host_numa").error("create", made).error("access", access).print();
  } else {
    Line("host_numa").error("create", made).print();
  }
  const auto one = [&](const HostWindow& w, Way way, std::size_t mib, Kind kind) {
    Load load(kind);
    const std::size_t each = std::min(sized(mib), window / 2);
    const double alone = rate_of(load, [] { pause(0.3); });
    double rate = 0;
    const double beside = rate_of(load, [&] { rate = gigabytes(way, block.at, w.at, window, each, 0.4); });
    Line line("link");
    line.text("host", w.kind).text("way", way == Way::kIn ? "in" : way == Way::kOut ? "out" : "both").number("mib", static_cast<double>(each / kMiB))
        .text("beside", name_of(kind)).number("gb_s_each_way", rate);
    if (kind != Kind::kNone) line.number("load_rate_alone", alone).number("load_rate_beside", beside);
    line.print();
  };
  for (const Way way : {Way::kIn, Way::kOut, Way::kBoth})
    for (const Kind kind : {Kind::kNone, Kind::kGemm, Kind::kBandwidth}) one(windows[0], way, 64, kind);
  for (const HostWindow& w : windows)
    for (const Way way : {Way::kIn, Way::kOut, Way::kBoth})
      for (const std::size_t mib : {2, 16, 256}) one(w, way, mib, Kind::kNone);
  disk(folder);
  MUST(cuMemHostUnregister(registered));
}

void tickets() {
  const Stream own;
  const Pinned word(4096);
  std::atomic_ref<std::uint64_t> counter(word.words()[0]);
  const Event event;
  std::uint64_t ticket = 0;
  counter = 0;
  for (const bool legacy : {false, true}) {
    const CUstream stream = legacy ? nullptr : own.stream;
    const char* name = legacy ? "legacy" : "own";
    std::vector<double> writes, records, queries, to_word, to_event, to_sync;
    for (int i = 0; i < count(500); ++i) {
      double start = now_us();
      MUST(cuStreamWriteValue64(stream, reinterpret_cast<CUdeviceptr>(word.at), ++ticket, 0));
      writes.push_back(now_us() - start);
      start = now_us();
      MUST(cuEventRecord(event.event, stream));
      records.push_back(now_us() - start);
      start = now_us();
      driver.cuEventQuery(event.event);
      queries.push_back(now_us() - start);
      MUST(cuStreamSynchronize(stream));
      // From the launch of a kernel of 20 us until the host sees its end, each way of looking in turn.
      start = now_us();
      run("spin", stream, {20'000});
      MUST(cuStreamWriteValue64(stream, reinterpret_cast<CUdeviceptr>(word.at), ++ticket, 0));
      while (counter.load() < ticket) {}
      to_word.push_back(now_us() - start);
      start = now_us();
      run("spin", stream, {20'000});
      MUST(cuEventRecord(event.event, stream));
      while (driver.cuEventQuery(event.event) == CUDA_ERROR_NOT_READY) {}
      to_event.push_back(now_us() - start);
      start = now_us();
      run("spin", stream, {20'000});
      MUST(cuStreamSynchronize(stream));
      to_sync.push_back(now_us() - start);
    }
    Line("ticket").text("stream", name).durations("write_value", writes).durations("record", records).durations("query", queries)
        .durations("seen_by_word", to_word).durations("seen_by_event", to_event).durations("seen_by_synchronize", to_sync).print();
  }
  // What a mark between two kernels costs the device: the same small kernels with and without one after each.
  const Memory target(sized(2));
  for (const int round : {0, 1, 2})
    for (const std::string mark : {"none", "write_value", "event"}) {
      const int kernels = count(2000);
      const double start = now_us();
      for (int i = 0; i < kernels; ++i) {
        run("fill", own.stream, {target.at, 1 << 14, 1, ~0ull, 0});
        if (mark == "write_value") MUST(cuStreamWriteValue64(own.stream, reinterpret_cast<CUdeviceptr>(word.at), ++ticket, 0));
        if (mark == "event") MUST(cuEventRecord(event.event, own.stream));
      }
      const double sent = now_us() - start;
      own.wait();
      Line("marks").text("mark", mark).number("round", round).number("kernels", kernels).number("host_us_each", sent / kernels)
          .number("us_each", (now_us() - start) / kernels).print();
    }
}

}  // namespace gpu
