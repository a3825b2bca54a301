// U0, U1, U3, U4: what device memory made of handles costs, and which rules it keeps.
#include <random>

#include "tools.hpp"

namespace gpu {

namespace {

double timed(const std::function<void()>& call) {
  const double start = now_us();
  call();
  return now_us() - start;
}

// Every call that a handle's life is made of, over and over, at one size.
void life_of_handles(std::size_t bytes, int rounds, const std::string& beside) {
  const CUdeviceptr at = reserve(bytes), home = reserve(bytes);
  std::vector<double> creates, maps, accesses, home_maps, home_accesses, to_reads, to_writes, unmaps, home_unmaps, releases;
  for (int i = 0; i < rounds; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    creates.push_back(timed([&] { handle = create(bytes); }));
    maps.push_back(timed([&] { MUST(cuMemMap(at, bytes, 0, handle, 0)); }));
    accesses.push_back(timed([&] { give_access(at, bytes); }));
    home_maps.push_back(timed([&] { MUST(cuMemMap(home, bytes, 0, handle, 0)); }));
    home_accesses.push_back(timed([&] { give_access(home, bytes); }));
    to_reads.push_back(timed([&] { give_access(at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ); }));
    to_writes.push_back(timed([&] { give_access(at, bytes); }));
    unmaps.push_back(timed([&] { MUST(cuMemUnmap(at, bytes)); }));
    home_unmaps.push_back(timed([&] { MUST(cuMemUnmap(home, bytes)); }));
    releases.push_back(timed([&] { MUST(cuMemRelease(handle)); }));
  }
  MUST(cuMemAddressFree(at, bytes));
  MUST(cuMemAddressFree(home, bytes));
  Line("cost").text("beside", beside).number("mib", static_cast<double>(bytes / kMiB)).number("rounds", rounds).durations("create", creates)
      .durations("map", maps).durations("access", accesses).durations("home_map", home_maps).durations("home_access", home_accesses)
      .durations("to_read_only", to_reads).durations("to_read_write", to_writes).durations("unmap", unmaps)
      .durations("home_unmap", home_unmaps).durations("release", releases).print();
}

// The same bytes as so many handles under one call for access and one for the unmap: is the price per handle or per call?
void in_pieces(std::size_t bytes, int pieces) {
  const std::size_t each = bytes / static_cast<std::size_t>(pieces);
  const CUdeviceptr at = reserve(bytes);
  std::vector<CUmemGenericAllocationHandle> handles;
  for (int i = 0; i < pieces; ++i) handles.push_back(create(each));
  std::vector<double> maps, accesses, to_reads, unmaps;
  for (int round = 0; round < count(10); ++round) {
    maps.push_back(timed([&] { for (std::size_t i = 0; i < handles.size(); ++i) MUST(cuMemMap(at + i * each, each, 0, handles[i], 0)); }));
    accesses.push_back(timed([&] { give_access(at, bytes); }));
    to_reads.push_back(timed([&] { give_access(at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ); }));
    unmaps.push_back(timed([&] { MUST(cuMemUnmap(at, bytes)); }));
  }
  for (const auto handle : handles) MUST(cuMemRelease(handle));
  MUST(cuMemAddressFree(at, bytes));
  Line("pieces").number("mib", static_cast<double>(bytes / kMiB)).number("pieces", pieces).durations("map", maps).durations("access", accesses)
      .durations("to_read_only", to_reads).durations("unmap", unmaps).print();
}

// What the driver answers to what the design says that it refuses.
void refusals() {
  const std::size_t bytes = 4 * kMiB;
  const CUdeviceptr at = reserve(2 * bytes);
  const auto handle = create(bytes);
  Line line("refusals");
  line.error("map_at_an_offset", driver.cuMemMap(at, bytes / 2, bytes / 2, handle, 0));
  line.error("map_of_a_part", driver.cuMemMap(at, bytes / 2, 0, handle, 0));
  driver.cuMemUnmap(at, bytes / 2);  // in case that one was allowed
  map(at, bytes, handle);
  line.error("unmap_of_a_part", driver.cuMemUnmap(at, bytes / 2));
  driver.cuMemUnmap(at, bytes);
  driver.cuMemUnmap(at + bytes / 2, bytes / 2);
  driver.cuMemRelease(handle);
  MUST(cuMemAddressFree(at, 2 * bytes));
  line.print();
}

}  // namespace

void attributes() {
  int version = 0;
  char name[128] = "";
  MUST(cuDriverGetVersion(&version));
  MUST(cuDeviceGetName(name, sizeof name, the_device));
  std::size_t free = 0, total = 0, minimum = 0, recommended = 0;
  MUST(cuMemGetInfo(&free, &total));
  const CUmemAllocationProp prop = device_memory();
  MUST(cuMemGetAllocationGranularity(&minimum, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  MUST(cuMemGetAllocationGranularity(&recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  Line line("attributes");
  line.text("name", name).number("driver", version).number("free", static_cast<double>(free)).number("total", static_cast<double>(total))
      .number("granularity_minimum", static_cast<double>(minimum)).number("granularity_recommended", static_cast<double>(recommended));
  const auto attribute = [&](const char* key, CUdevice_attribute which) {
    int value = -1;
    driver.cuDeviceGetAttribute(&value, which, the_device);
    line.number(key, value);
  };
  attribute("vmm", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  attribute("host_numa_vmm", CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  attribute("host_numa_id", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  attribute("gpu_direct_rdma_with_vmm", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  attribute("copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  attribute("multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  line.print();
  // D3: one reservation of 1 TiB for the whole process.
  CUdeviceptr wide = 0;
  const CUresult reserved = driver.cuMemAddressReserve(&wide, 1ull << 40, 0, 0, 0);
  Line("reservation").number("bytes", static_cast<double>(1ull << 40)).error("answer", reserved).print();
  if (reserved == CUDA_SUCCESS) MUST(cuMemAddressFree(wide, 1ull << 40));
}

void costs() {
  refusals();
  for (const int pieces : {1, 4, 16, 64, 256}) in_pieces(512 * kMiB, pieces);
  for (const std::size_t mib : {2, 4, 8, 16, 32, 64, 128, 512}) life_of_handles(sized(mib), count(200), "idle");
  for (const Kind kind : {Kind::kGemm, Kind::kBandwidth}) {
    Load load(kind);
    rate_of(load, [&] { for (const std::size_t mib : {4, 16, 64, 512}) life_of_handles(sized(mib), count(100), name_of(kind)); });
  }
}

void homes() {
  const std::size_t bytes = sized(16);
  const Memory block(bytes);  // its address is the storage's
  const CUdeviceptr home = reserve(bytes);
  map(home, bytes, block.handle);
  const Pinned host(bytes);
  const Stream compute, copies;
  const Event done;
  const int rounds = count(1000);
  std::uint64_t wrong_out = 0, wrong_in = 0;
  std::mt19937_64 seeds(1);
  Load load(Kind::kBandwidth);
  rate_of(load, [&] {
    for (int i = 0; i < rounds; ++i) {
      const std::uint64_t seed = seeds();
      // A kernel writes at the storage's address, a copy reads at home.
      fill(block.at, bytes, seed, compute.stream);
      MUST(cuEventRecord(done.event, compute.stream));
      MUST(cuStreamWaitEvent(copies.stream, done.event, 0));
      MUST(cuMemcpyDtoHAsync(host.at, home, bytes, copies.stream));
      copies.wait();
      for (std::size_t w = seed % 61; w < bytes / 8; w += 61) wrong_out += host.words()[w] != pattern(w, seed);
      // A copy writes at home, a kernel reads at the storage's address.
      for (std::size_t w = 0; w < bytes / 8; ++w) host.words()[w] = pattern(w, ~seed);
      MUST(cuMemcpyHtoDAsync(home, host.at, bytes, copies.stream));
      MUST(cuEventRecord(done.event, copies.stream));
      MUST(cuStreamWaitEvent(compute.stream, done.event, 0));
      wrong_in += wrong_words(block.at, bytes, ~seed, compute.stream);
    }
  });
  Line("homes").number("rounds", rounds).number("mib", static_cast<double>(bytes / kMiB)).number("wrong_words_out", static_cast<double>(wrong_out))
      .number("wrong_words_in", static_cast<double>(wrong_in)).print();

  // An eviction as D7 has it: unmap the storage's address while a copy of the same handle runs at home.
  const std::size_t large = sized(1024);
  const CUdeviceptr at = reserve(large), large_home = reserve(large);
  const auto handle = create(large);
  map(large_home, large, handle);
  const Pinned out(large);
  std::uint64_t wrong = 0;
  std::vector<double> unmaps;
  int while_copying = 0;
  for (int i = 0; i < count(10); ++i) {
    map(at, large, handle);
    fill(at, large, static_cast<std::uint64_t>(i), compute.stream);
    compute.wait();
    MUST(cuMemcpyDtoHAsync(out.at, large_home, large, copies.stream));
    unmaps.push_back(timed([&] { MUST(cuMemUnmap(at, large)); }));
    while_copying += driver.cuStreamQuery(copies.stream) == CUDA_ERROR_NOT_READY;
    copies.wait();
    for (std::size_t w = 0; w < large / 8; w += 509) wrong += out.words()[w] != pattern(w, static_cast<std::uint64_t>(i));
  }
  Line("unmap_beside_copy").number("mib", static_cast<double>(large / kMiB)).number("wrong_words", static_cast<double>(wrong))
      .number("returned_while_copying", while_copying).number("rounds", count(10)).durations("unmap", unmaps).print();
  MUST(cuMemUnmap(large_home, large));
  MUST(cuMemRelease(handle));
  MUST(cuMemUnmap(home, bytes));
}

void reflow() {
  const std::size_t bytes = sized(112);
  constexpr int kHandles = 24;
  for (const Kind kind : {Kind::kNone, Kind::kGemm, Kind::kBandwidth}) {
    Load load(kind);
    const Pinned host(bytes);
    std::vector<double> creates, first_copies, second_copies, releases;
    std::uint64_t not_zero = 0;
    const auto pass = [&] {
      const Stream copies;
      const CUdeviceptr at = reserve(kHandles * bytes);
      std::vector<CUmemGenericAllocationHandle> handles;
      for (int i = 0; i < kHandles; ++i) {
        const CUdeviceptr here = at + static_cast<std::size_t>(i) * bytes;
        creates.push_back(timed([&] { handles.push_back(create(bytes)); map(here, bytes, handles.back()); }));
        if (i % 4 == 0) not_zero += wrong_words(here, bytes, 0, copies.stream, 0);
        const auto copy = [&] { MUST(cuMemcpyHtoDAsync(here, host.at, bytes, copies.stream)); copies.wait(); };
        first_copies.push_back(timed(copy));
        second_copies.push_back(timed(copy));
        fill(here, bytes, 99, copies.stream);  // so that the next pass would see what was left behind
      }
      copies.wait();
      MUST(cuMemUnmap(at, kHandles * bytes));
      for (const auto handle : handles) releases.push_back(timed([&] { MUST(cuMemRelease(handle)); }));
      MUST(cuMemAddressFree(at, kHandles * bytes));
    };
    const double busy = rate_of(load, [&] { pass(); pass(); });
    const double alone = rate_of(load, [&] { std::this_thread::sleep_for(std::chrono::milliseconds(small ? 5 : 500)); });
    Line("reflow").text("beside", name_of(kind)).number("mib", static_cast<double>(bytes / kMiB)).number("handles", kHandles)
        .number("words_not_zero", static_cast<double>(not_zero)).number("load_rate_beside", busy).number("load_rate_alone", alone)
        .durations("create_and_map", creates).durations("first_copy", first_copies).durations("second_copy", second_copies)
        .durations("release", releases).print();
  }
}

}  // namespace gpu
