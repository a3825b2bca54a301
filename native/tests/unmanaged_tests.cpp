// What lies outside the arena, as looks and the process's own peak show it.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>

#include "../core/budget.hpp"
#include "../core/data_files.hpp"
#include "../core/system.hpp"
#include "../core/unmanaged.hpp"
#include "check.hpp"

using namespace ebbtide;

TEST(what_lies_outside_is_the_peak_of_two_steps) {
  Unmanaged outside;
  CHECK(!outside.look(300, 200) && !outside.look(250, 200));
  CHECK(Unmanaged().look(2 * kMiB, 0));
  CHECK(outside.bytes() == 100);
  outside.look(100, 200);  // pages that are reserved and not yet touched
  CHECK(outside.bytes() == 100);
  outside.look(300, 200);
  outside.end_step(0, 200);
  outside.look(230, 200);
  outside.end_step(0, 200);
  CHECK(outside.bytes() == 100);
  outside.end_step(0, 200);
  CHECK(outside.bytes() == 30);
}

TEST(what_comes_and_goes_in_a_step_is_expected_on_top_of_what_came_to_stay) {
  Unmanaged outside;
  outside.begin_step(100, 0);
  outside.look(150, 0);
  outside.look(120, 0);  // 20 have come to stay
  outside.end_step(0, 0);
  CHECK(outside.bytes() == 150);  // 120 and 30
  outside.begin_step(170, 0);     // between steps, 50 more
  CHECK(outside.bytes() == 200);
  for (int step = 0; step < 2; ++step) {
    outside.look(170, 0);
    outside.end_step(0, 0);
  }
  CHECK(outside.bytes() == 170);
}

TEST(what_no_look_saw_shows_in_the_peak_of_the_process) {
  Unmanaged outside;
  outside.reserved(200);
  outside.look(300, 200);
  outside.end_step(5000, 200);  // from before: nothing is known of it
  CHECK(outside.bytes() == 100);
  outside.look(300, 200);
  outside.reserved(260);
  outside.end_step(5400, 200);
  CHECK(outside.bytes() == 5400 - 260);
  outside.look(300, 200);
  outside.reserved(260);
  outside.end_step(5400, 200);  // it did not rise again
  CHECK(outside.bytes() > 5000 && outside.bytes() < 5400 - 260);  // and is forgotten slowly
  for (int step = 0; step < 2000; ++step) {
    outside.look(300, 200);
    outside.end_step(5400, 200);
  }
  CHECK(outside.bytes() < 200);
}

TEST(the_peak_of_the_process_is_what_it_touched) {
  std::size_t before = process_peak_bytes(), resident = process_memory().resident;
  CHECK(before > 0 && resident > 0);
  Arena& arena = make_arena(64 * kMiB);
  char* p = filled_block(arena, 32 * kMiB, 1);
  CHECK(process_peak_bytes() >= resident + 32 * kMiB);
  arena.release(p);
}

TEST(a_small_budget_is_looked_at_more_often_since_new_pages_use_it_up_sooner) {
  Budget budget;
  CHECK(budget.look_every() == std::chrono::milliseconds(10));
  budget.set_limits(0, 8192 * kMiB);
  CHECK(budget.look_every() == std::chrono::milliseconds(10));
  budget.set_limits(0, 600 * kMiB);  // 12 MiB more are tolerated, and 8.7 below it kept free
  CHECK(budget.look_every() > std::chrono::milliseconds(3) && budget.look_every() < std::chrono::milliseconds(4));
  budget.set_limits(600 * kMiB, 0);
  CHECK(budget.look_every() == std::chrono::milliseconds(10));
}

TEST(pages_of_a_file_with_data_are_told_from_those_of_programs) {
  constexpr std::size_t kBytes = 32 * kMiB;
  char path[] = "./ebbtide-data-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0 && ftruncate(fd, kBytes) == 0);
  std::uint64_t mapped = data_bytes(false).mapped;
  CHECK(data_bytes(false).resident == 0);  // nobody asked for it
  std::size_t shared = process_memory().shared, of_files = process_file_bytes();
  auto* bytes = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0));
  CHECK(bytes != MAP_FAILED);
  unsigned sum = 0;
  for (std::size_t at = 0; at < kBytes; at += kSmallPage) sum += static_cast<unsigned char>(bytes[at]);
  CHECK(sum == 0);
  CHECK(process_memory().shared >= shared + kBytes && process_file_bytes() >= of_files + kBytes);
  DataBytes now = data_bytes(true);
  CHECK(now.mapped == mapped + kBytes && now.resident >= kBytes);
  struct stat it;
  CHECK(fstat(fd, &it) == 0 && unlink(path) == 0);
  if (major(it.st_dev) != 0) CHECK(data_bytes(false).mapped == mapped + kBytes);  // a block device tells it from memory
  munmap(bytes, kBytes);
  close(fd);
  CHECK(data_bytes(false).mapped == mapped);
}

TEST(pages_that_were_there_before_data_are_a_programs) {
  std::uint64_t of_files = process_file_bytes(), half = of_files / 2;
  DataFiles files;
  CHECK(files.is_due(of_files + 9 * kMiB) && !files.has_looked() && files.bytes(of_files) == 0);
  files.look(of_files - half, {});
  CHECK(files.has_looked() && !files.is_due(of_files) && files.is_due(2 * of_files + 8 * kMiB));
  CHECK(files.bytes(of_files) == 0);  // no data
  files.look(of_files, {64 * kMiB, 0});
  CHECK(files.bytes(of_files) >= half && files.bytes(of_files) < half + kMiB);  // what has come since
  DataFiles late;  // data were mapped when it looked first
  late.look(of_files, {64 * kMiB, half});
  CHECK(late.bytes(of_files) >= half && late.bytes(of_files) < half + kMiB);
}
