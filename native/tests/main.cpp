#include <cstring>

#include "../core/fault.hpp"
#include "../core/file_tier.hpp"
#include "check.hpp"

const char* spill_directory() {
  const char* named = std::getenv("EBBTIDE_SPILL");
  return named != nullptr ? named : "/var/tmp";
}

ebbtide::Arena& make_arena(std::uint64_t limit, ebbtide::Options options, ebbtide::Tiers::List slower) {
  if (slower.empty()) slower.push_back(std::make_unique<ebbtide::FileTier>(std::vector<std::string>{spill_directory()}));
  // All tests can be run under userfaultfd.
  options.userfault |= std::getenv("EBBTIDE_USERFAULTFD") != nullptr;
  options.huge_region_bytes = std::size_t{8} << 30;
  options.small_region_bytes = std::size_t{1} << 30;
  auto* arena = new ebbtide::Arena(options, std::move(slower));
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
