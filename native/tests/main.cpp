#include <cstring>

#include "../core/fault.hpp"
#include "check.hpp"

const char* spill_directory() {
  const char* named = std::getenv("EBBTIDE_SPILL");
  return named != nullptr ? named : "/var/tmp";
}

ebbtide::Arena& make_arena(std::uint64_t limit, ebbtide::Options options) {
  if (options.spill_directories.empty()) options.spill_directories = {spill_directory()};
  // All tests can be run under userfaultfd.
  options.userfault |= std::getenv("EBBTIDE_USERFAULTFD") != nullptr;
  options.huge_region_bytes = std::size_t{8} << 30;
  options.small_region_bytes = std::size_t{1} << 30;
  auto* arena = new ebbtide::Arena(options);
  arena->set_limits(limit, 0);
  ebbtide::install_fault_handler(*arena);
  return *arena;
}

// All tests, or those whose names contain the argument.
int main(int argc, char** argv) {
  int run = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
    ++run;
  }
  std::printf("%d passed, 0 failed\n", run);
  return run > 0 ? 0 : 1;
}
