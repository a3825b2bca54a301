// What takes two NUMA nodes: where pages lie, and what becomes of a node that is full. `make numa-test` boots a machine with
// a second node, which has no CPU and little memory.
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "numa_ground.hpp"

using namespace ebbtide;

namespace {

bool one_node() {
  if (no_numa()) return true;
  if (far_node().number != 0) return false;
  std::printf("  skipped: one node\n");
  return true;
}

// Of this process, as /proc says.
std::uint64_t bytes_in_numa_maps(unsigned node) {
  std::ifstream maps("/proc/self/numa_maps");
  std::string pages = " N" + std::to_string(node) + "=";
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    std::size_t at = line.find(pages), unit = line.find(" kernelpagesize_kB=");
    if (line.find(" anon=") == std::string::npos || at == std::string::npos || unit == std::string::npos) continue;
    bytes += std::strtoull(&line[at + pages.size()], nullptr, 10) * std::strtoull(&line[unit + 19], nullptr, 10) * 1024;
  }
  return bytes;
}

bool lies_on(unsigned node, const char* data, std::size_t bytes) {
  Whereabouts found;
  look(data, bytes, node, found);
  return found.elsewhere == 0 && found.absent == 0;
}

}  // namespace

TEST(what_is_evicted_lies_on_the_other_numa_node_and_what_is_here_on_the_first) {
  if (one_node()) return;
  NumaGround ground(0, 64 * kMiB);
  Arena& arena = *ground.arena;
  const unsigned far = far_node().number;
  char* data = filled_block(arena, 12 * kMiB, 1);
  char* here = filled_block(arena, 5 * kMiB + 4096, 2);
  for (unsigned round = 0; round < 4; ++round) {
    CHECK(lies_on(0, data, 12 * kMiB) && lies_on(0, here, 5 * kMiB + 4096));
    CHECK(ground.tier->space().used == 0);
    const std::uint64_t before = bytes_in_numa_maps(far);
    CHECK(arena.evict(data) > 0 && arena.state(data) == State::Dirty && arena.tiers_with(data) == 2);
    CHECK(lies_on(far, data, 12 * kMiB) && lies_on(0, here, 5 * kMiB + 4096));
    CHECK(bytes_in_numa_maps(far) >= before + 12 * kMiB);
    std::printf("  %s: %s moved there\n", ground.tier->explain(0).where, BytesText(ground.tier->space().used).text);
    CHECK(filled(data, 12 * kMiB, 1 + round));  // read and written there
    fill(data, 12 * kMiB, 2 + round);
    CHECK(lies_on(far, data, 12 * kMiB) && arena.counters().faults == 0);
    CHECK(arena.fetch(data) == 0 && arena.tiers_with(data) == 0);
  }
}

TEST(what_is_born_in_place_and_what_was_never_touched_lies_on_the_other_numa_node) {
  if (one_node()) return;
  NumaGround ground(16 * kMiB, 64 * kMiB);
  Arena& arena = *ground.arena;
  arena.set_policy(*find_policy("first-touch"));
  auto* first = static_cast<char*>(arena.allocate(14 * kMiB));
  auto* second = static_cast<char*>(arena.allocate(12 * kMiB));
  fill(first, 14 * kMiB, 1);
  CHECK(arena.tiers_with(second) == 2);
  fill(second, 12 * kMiB, 2);
  CHECK(lies_on(0, first, 14 * kMiB) && lies_on(far_node().number, second, 12 * kMiB));
  CHECK(arena.evict(first) > 0);
  auto* third = static_cast<char*>(arena.allocate(8 * kMiB));
  CHECK(arena.tiers_with(third) == 0 && arena.evict(third) > 0 && arena.tiers_with(third) == 2);
  fill(third, 8 * kMiB, 3);
  CHECK(lies_on(far_node().number, third, 8 * kMiB) && filled(first, 14 * kMiB, 1) && filled(second, 12 * kMiB, 2));
}

TEST(what_moves_to_a_numa_node_takes_no_neighbour_along) {
  if (one_node()) return;
  NumaGround ground(0, 64 * kMiB);
  Arena& arena = *ground.arena;
  char* all[16];  // side by side in small pages
  for (unsigned i = 0; i < 16; ++i) {
    all[i] = static_cast<char*>(arena.allocate(256 << 10));
    fill(all[i], 256 << 10, i);
  }
  const unsigned far = far_node().number;
  const std::uint64_t before = bytes_in_numa_maps(far);  // of other arenas
  for (unsigned i = 0; i < 16; i += 2) CHECK(arena.evict(all[i]) > 0);
  for (unsigned i = 0; i < 16; ++i) CHECK(lies_on(i % 2 == 0 ? far : 0, all[i], 256 << 10));
  CHECK(bytes_in_numa_maps(far) == before + ground.tier->space().used);
  for (unsigned i = 0; i < 16; i += 4) CHECK(arena.fetch(all[i]) == 0);
  for (unsigned i = 0; i < 16; ++i) CHECK(lies_on(i % 4 == 2 ? far : 0, all[i], 256 << 10) && filled(all[i], 256 << 10, i));
}

TEST(pages_move_to_another_numa_node_and_keep_their_address_and_bytes) {
  if (one_node()) return;
  for (bool huge : {false, true}) {
    auto* data = static_cast<char*>(must_get(10 * kMiB));
    data = reinterpret_cast<char*>(round_up(reinterpret_cast<std::uintptr_t>(data), kHugePage));
    madvise(data, 8 * kMiB, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    CHECK(make_pages_local(data, 8 * kMiB) == 0);
    fill(data, 8 * kMiB, 7);
    for (unsigned round = 0; round < 40; ++round) {
      const unsigned node = round % 2 == 0 ? far_node().number : 0;
      CHECK(move_to_node(data, 8 * kMiB, node) == 0);
      Whereabouts found;
      look(data, 8 * kMiB, node, found);
      CHECK(found.on_node == 8 * kMiB && found.elsewhere == 0 && filled(data, 8 * kMiB, 7));
    }
    must_drop_pages(data, 8 * kMiB);
  }
}

// Where the node is small, as that of `make numa-test` is: its memory is used up.
TEST(a_full_numa_node_is_an_errno_and_the_file_takes_over_and_nobody_is_killed) {
  if (one_node()) return;
  const NumaNode node = far_node();
  if (node.bytes > std::uint64_t{2} << 30) {
    std::printf("  skipped: that would take %s\n", BytesText(node.free).text);
    return;
  }
  constexpr std::size_t kStep = 4 * kMiB;
  char* hog = static_cast<char*>(must_get(node.bytes));
  CHECK(make_pages_local(hog, node.bytes) == 0);
  std::size_t taken = 0;
  while (taken < node.bytes && get_pages(hog + taken, kStep, node.number) == 0) taken += kStep;
  CHECK(taken > 0 && taken < node.bytes);
  must_drop_pages(hog + taken, kStep);
  std::printf("  node %u is full with %s\n", node.number, BytesText(taken).text);

  NumaGround ground(0, 64 * kMiB);
  char* data = filled_block(*ground.arena, 32 * kMiB, 1);
  CHECK(ground.arena->evict(data) > 0 && ground.arena->tiers_with(data) == 4);  // in the file
  CHECK(ground.tier->space().used == 0);
  CHECK(filled(data, 32 * kMiB, 1) && ground.arena->counters().message.empty());

  // What binding it would have come to.
  pid_t pid = fork();
  if (pid == 0) {
    std::ofstream("/proc/self/oom_score_adj") << 1000 << std::flush;
    void* bound = must_get(64 * kMiB);
    unsigned long mask[16] = {1ul << node.number};
    if (syscall(SYS_mbind, bound, 64 * kMiB, MPOL_BIND, mask, 1025, 0) != 0) _exit(1);
    must_populate(bound, 64 * kMiB);
    _exit(2);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  munmap(hog, node.bytes);

  NumaGround after(0, 64 * kMiB);
  char* again = filled_block(*after.arena, 32 * kMiB, 3);
  CHECK(after.arena->evict(again) > 0 && after.arena->tiers_with(again) == 2 && lies_on(node.number, again, 32 * kMiB) &&
        filled(again, 32 * kMiB, 3));
}

// Its page cache makes way.
TEST(a_numa_node_full_of_page_cache_has_room) {
  if (one_node()) return;
  const NumaNode node = far_node();
  if (node.bytes > std::uint64_t{2} << 30 || std::getenv("EBBTIDE_DISK") == nullptr) {
    std::printf("  skipped: a small node and EBBTIDE_DISK, a folder on a disk, are needed\n");
    return;
  }
  unsigned long mask[16] = {1ul << node.number};
  CHECK(syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, 1025) == 0);
  std::string path = std::string(std::getenv("EBBTIDE_DISK")) + "/cache";
  std::vector<char> block(kMiB, 'x');
  std::ofstream file(path);
  for (std::uint64_t at = 0; at < node.free + (std::uint64_t{32} << 20); at += kMiB) file.write(block.data(), kMiB);
  file.close();
  sync();
  CHECK(syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) == 0);
  std::printf("  free on node %u: %s, then %s\n", node.number, BytesText(node.free).text, BytesText(far_node().free).text);
  const std::size_t bytes = round_up(far_node().free + 64 * kMiB, kHugePage);  // more than is free
  CHECK(bytes < node.free / 2);
  NumaGround ground(0, bytes);
  char* data = filled_block(*ground.arena, bytes, 1);
  CHECK(ground.arena->evict(data) > 0 && ground.arena->tiers_with(data) == 2 && filled(data, bytes, 1));
  CHECK(lies_on(node.number, data, bytes));
  unlink(path.c_str());
}
