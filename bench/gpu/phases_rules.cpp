// U11, U5: what an access that the design does not expect does, and what a host handle at a storage's address would give.
#include "tools.hpp"

namespace gpu {

namespace {

// What still works after the case's own call: another stream, a copy, the driver's bookkeeping.
void aftermath(Line& line, const Memory& other, const Pinned& host, CUdeviceptr spare, CUmemGenericAllocationHandle handle) {
  CUstream fresh = nullptr;
  std::size_t free = 0, total = 0;
  CUmemGenericAllocationHandle made = 0;
  const CUmemAllocationProp prop = device_memory();
  line.error("then_stream", driver.cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING));
  line.error("then_launch", launch("fill", 1, 32, fresh, {other.at, 32, 1, ~0ull, 0}));
  line.error("then_copy", driver.cuMemcpyDtoHAsync(host.at, other.at, 4096, fresh));
  line.error("then_synchronize", driver.cuCtxSynchronize());
  line.error("then_memory_info", driver.cuMemGetInfo(&free, &total));
  line.error("then_create", driver.cuMemCreate(&made, 2 * kMiB, &prop, 0));
  line.error("then_unmap", driver.cuMemUnmap(spare, 2 * kMiB));
  line.error("then_release", driver.cuMemRelease(handle));
}

}  // namespace

// Each case is a process of its own: the error is sticky. Nothing here is a must after the faulty access.
void crash(const std::string& which) {
  const Stream stream;
  auto* other = new Memory(2 * kMiB);  // leaked: on a lost context nothing can be given back
  auto* host = new Pinned(2 * kMiB);
  const std::size_t bytes = 2 * kMiB;
  const CUdeviceptr block = reserve(bytes), spare = reserve(bytes);
  const auto handle = create(bytes), spare_handle = create(bytes);
  map(spare, bytes, spare_handle);
  map(block, bytes, handle);
  fill(block, bytes, 5, stream.stream);
  stream.wait();
  Line line("crash");
  line.text("case", which);
  if (which == "load_unmapped") {
    MUST(cuMemUnmap(block, bytes));
    line.error("launch", launch("copy", 1, 32, stream.stream, {other->at, block, 64}));
  } else if (which == "store_unmapped") {
    MUST(cuMemUnmap(block, bytes));
    line.error("launch", launch("fill", 1, 32, stream.stream, {block, 64, 1, ~0ull, 0}));
  } else if (which == "load_read_only") {
    give_access(block, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
    line.error("launch", launch("copy", 1, 32, stream.stream, {other->at, block, 64}));
  } else if (which == "store_read_only") {
    give_access(block, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
    line.error("launch", launch("fill", 1, 32, stream.stream, {block, 64, 1, ~0ull, 0}));
  } else if (which == "atomic_read_only") {
    give_access(block, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
    line.error("launch", launch("add", 1, 32, stream.stream, {block, 64, 1}));
  } else if (which == "copy_into_read_only") {
    give_access(block, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
    line.error("launch", driver.cuMemcpyHtoDAsync(block, host->at, bytes, stream.stream));
  } else if (which == "copy_from_unmapped") {
    MUST(cuMemUnmap(block, bytes));
    line.error("launch", driver.cuMemcpyDtoHAsync(host->at, block, bytes, stream.stream));
  } else if (which == "unmap_under_reader" || which == "remap_under_reader") {
    line.error("launch", launch("read_for", 1, 256, stream.stream, {block, bytes / 8, 100'000'000, other->at}));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const double start = now_us();
    line.error("unmap", driver.cuMemUnmap(block, bytes)).number("unmap_us", now_us() - start);
    line.flag("returned_while_it_read", driver.cuStreamQuery(stream.stream) == CUDA_ERROR_NOT_READY);
    if (which == "remap_under_reader") {
      line.error("map", driver.cuMemMap(block, bytes, 0, create(bytes), 0));
      line.error("access", set_access(block, bytes));
    }
  } else {
    stop("unknown case " + which);
  }
  line.error("synchronize", driver.cuStreamSynchronize(stream.stream));
  aftermath(line, *other, *host, spare, spare_handle);
  line.print();
  std::fflush(stdout);
  std::_Exit(0);  // destructors would ask a lost context
}

void host_net() {
  const std::size_t bytes = sized(32);
  const CUmemAllocationProp prop = host_memory();
  const Stream stream;
  const Event start(CU_EVENT_DEFAULT), end(CU_EVENT_DEFAULT);
  CUmemGenericAllocationHandle host = 0;
  const CUresult made = driver.cuMemCreate(&host, bytes, &prop, 0);
  if (made != CUDA_SUCCESS) {
    Line("host_net").error("create", made).print();
    return;
  }
  const CUdeviceptr block = reserve(bytes);
  const auto own = create(bytes);
  const Memory target(bytes), result(bytes), expected(bytes);
  // The same reads, atomics and product with the operand in device memory and in host memory at the same address.
  for (const bool away : {false, true}) {
    double began = now_us();
    MUST(cuMemMap(block, bytes, 0, away ? host : own, 0));
    const double mapped = now_us() - began;
    began = now_us();
    const CUresult access = set_access(block, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, away);
    Line line("host_net");
    line.text("memory", away ? "host" : "device").number("map_us", mapped).number("access_us", now_us() - began).error("access", access);
    if (access == CUDA_SUCCESS) {
      run("fill", stream.stream, {block, bytes / 8, 3, 0x807F807F807F807Full, 0x3F003F003F003F00ull});
      if (bytes >= std::size_t{Gemm::kSide} * Gemm::kSide * 2) Gemm::launch(stream.stream, block, block, away ? result.at : expected.at);
      for (int i = 0; i < 2; ++i) {
        MUST(cuEventRecord(start.event, stream.stream));
        run("copy", stream.stream, {target.at, block, bytes / 8});
        MUST(cuEventRecord(end.event, stream.stream));
      }
      stream.wait();
      float ms = 0;
      MUST(cuEventElapsedTime(&ms, start.event, end.event));
      line.number("read_gb_s", static_cast<double>(bytes) / static_cast<double>(ms) / 1e6);
      // Every word gets 1 from three launches: the pattern of nought, that is all zeros, and three.
      run("fill", stream.stream, {block, bytes / 8, 0, 0, 0});
      for (int i = 0; i < 3; ++i) run("add", stream.stream, {block, bytes / 8, 1});
      const Pinned seen(bytes);
      MUST(cuMemcpyDtoHAsync(seen.at, block, bytes, stream.stream));
      stream.wait();
      std::uint64_t wrong = 0;
      for (std::size_t w = 0; w < bytes / 8; ++w) wrong += seen.words()[w] != 3;
      line.number("wrong_atomics", static_cast<double>(wrong));
    }
    line.print();
    MUST(cuMemUnmap(block, bytes));
  }
  const Pinned a(bytes), b(bytes);
  MUST(cuMemcpyDtoHAsync(a.at, result.at, bytes, stream.stream));
  MUST(cuMemcpyDtoHAsync(b.at, expected.at, bytes, stream.stream));
  stream.wait();
  std::uint64_t differ = 0;
  for (std::size_t w = 0; w < bytes / 8; ++w) differ += a.words()[w] != b.words()[w];
  Line("host_net_product").text("product", Gemm::real() ? "gemm" : "none").number("words_that_differ", static_cast<double>(differ)).print();
  MUST(cuMemRelease(host));
  MUST(cuMemRelease(own));
}

}  // namespace gpu
