#include "tools.hpp"

#include <dlfcn.h>

namespace gpu {

void* Gemm::handle_ = nullptr;
decltype(Gemm::multiply_) Gemm::multiply_ = nullptr;
decltype(Gemm::set_stream_) Gemm::set_stream_ = nullptr;

void Gemm::use(const char* library) {
  void* loaded = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (loaded == nullptr) {
    std::fprintf(stderr, "probe: no cuBLAS (%s): GEMMs are replaced by an arithmetic-bound kernel\n", dlerror());
    return;
  }
  const auto create = reinterpret_cast<int (*)(void**)>(dlsym(loaded, "cublasCreate_v2"));
  multiply_ = reinterpret_cast<decltype(multiply_)>(dlsym(loaded, "cublasGemmEx"));
  set_stream_ = reinterpret_cast<decltype(set_stream_)>(dlsym(loaded, "cublasSetStream_v2"));
  if (create == nullptr || multiply_ == nullptr || set_stream_ == nullptr) stop("this cuBLAS lacks functions that the probe needs");
  if (const int error = create(&handle_); error != 0) stop("cublasCreate: " + std::to_string(error));
}

void Gemm::launch(CUstream stream, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c) {
  if (!real()) return run("fma", stream, {c, 4096});
  constexpr int kBf16 = 14, kFloat = 68 /* CUBLAS_COMPUTE_32F */, kDefault = -1, kTransposed = 1, kPlain = 0;
  const float one = 1, zero = 0;
  const auto pointer = [](CUdeviceptr p) { return reinterpret_cast<void*>(p); };
  int error = set_stream_(handle_, stream);
  if (error == 0)
    error = multiply_(handle_, kTransposed, kPlain, kSide, kSide, kSide, &one, pointer(a), kBf16, kSide, pointer(b), kBf16, kSide, &zero, pointer(c), kBf16,
                      kSide, kFloat, kDefault);
  if (error != 0) stop("cublasGemmEx: " + std::to_string(error));
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "idle";
    case Kind::kGemm: return Gemm::real() ? "gemm" : "fma";
    case Kind::kBandwidth: return "bandwidth";
    case Kind::kTiny: return "tiny";
  }
  return "";
}

namespace {
constexpr std::size_t kAhead = 32;
}

Load::Load(Kind kind) : kind_(kind) {
  const std::size_t bytes = kind == Kind::kGemm ? std::size_t{Gemm::kSide} * Gemm::kSide * 2 : sized(kind == Kind::kBandwidth ? 256 : 2);
  if (kind == Kind::kNone) return;
  a_ = std::make_unique<Memory>(small ? 2 * kMiB : bytes);
  b_ = std::make_unique<Memory>(small ? 2 * kMiB : bytes);
  c_ = std::make_unique<Memory>(small ? 2 * kMiB : bytes);
  // bf16 numbers between 0.5 and 1 of either sign in every 16 bits.
  for (const Memory* m : {a_.get(), b_.get()}) run("fill", stream.stream, {m->at, m->bytes / 8, 7, 0x807F807F807F807Full, 0x3F003F003F003F00ull});
  for (std::size_t i = 0; i < kAhead; ++i) ring_.push_back(std::make_unique<Event>());
  stream.wait();
}

Load::~Load() { stop(); }

void Load::one() {
  if (kind_ == Kind::kNone) return;
  const Event& slot = *ring_[sent_ % kAhead];
  if (sent_ >= kAhead) {
    MUST(cuEventSynchronize(slot.event));
    ++done_;
  }
  const double start = now_us();
  if (kind_ == Kind::kGemm) Gemm::launch(stream.stream, a_->at, b_->at, c_->at);
  if (kind_ == Kind::kBandwidth) run("copy", stream.stream, {c_->at, a_->at, c_->bytes / 8});
  if (kind_ == Kind::kTiny) run("fill", stream.stream, {c_->at, 1 << 16, 1, ~0ull, 0});
  launches.push_back(now_us() - start);
  MUST(cuEventRecord(slot.event, stream.stream));
  ++sent_;
}

void Load::start() {
  if (kind_ == Kind::kNone) return;
  running_ = true;
  thread_ = std::thread([this] {
    CUcontext context = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&context, the_device));
    MUST(cuCtxSetCurrent(context));
    while (running_) one();
  });
}

void Load::stop() {
  running_ = false;
  if (thread_.joinable()) thread_.join();
  driver.cuStreamSynchronize(stream.stream);
}

double rate_of(Load& load, const std::function<void()>& during) {
  load.start();
  const double warm_until = now_us() + (small ? 5e3 : 1e5);
  while (now_us() < warm_until) std::this_thread::yield();
  const std::uint64_t before = load.done();
  const double start = now_us();
  during();
  const double rate = static_cast<double>(load.done() - before) / (now_us() - start) * 1e6;
  load.stop();
  return rate;
}

}  // namespace gpu
