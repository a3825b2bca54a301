#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "../core/fault.hpp"
#include "../core/file_tier.hpp"
#include "check.hpp"

const char* spill_directory() {
  const char* named = std::getenv("EBBTIDE_SPILL");
  return named != nullptr ? named : "/var/tmp";
}

static std::vector<ebbtide::Arena*> arenas;

ebbtide::Arena& make_arena(std::uint64_t limit, ebbtide::Options options, ebbtide::Tiers::List slower) {
  if (slower.empty()) slower.push_back(std::make_unique<ebbtide::FileTier>(std::vector<std::string>{spill_directory()}));
  options.huge_region_bytes = std::size_t{8} << 30;
  options.small_region_bytes = std::size_t{1} << 30;
  auto* arena = new ebbtide::Arena(options, std::move(slower));
  arena->set_limits(limit, 0);
  ebbtide::install_fault_handler(*arena);
  arenas.push_back(arena);
  return *arena;
}

namespace {

// Not by exit(): its threads may still look at what that destroys.
[[noreturn]] void leave() {
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  std::fflush(nullptr);
  _exit(0);
}

// Seconds of a test.
int longest() {
  const char* race = std::getenv("EBBTIDE_RACE_SECONDS");
  return 400 + (race != nullptr ? std::atoi(race) : 0);
}

// Where each thread of a process is: of one that does not end, what it waits for.
void tell_threads(pid_t pid) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    for (const char* file : {"comm", "wchan", "syscall"}) {
      std::string line;
      std::getline(std::ifstream(task.path() / file), line);
      std::fprintf(stderr, "  %s", line.c_str());
    }
    std::fputc('\n', stderr);
  }
}

// In a process of its own, since an arena lives as long as its process, with its threads, its memory and its spill file.
bool passes(const Test& test) {
  pid_t child = fork();
  if (child == 0) {
    test.run();
    for (ebbtide::Arena* arena : arenas) arena->check_invariants();
    leave();
  }
  using Clock = std::chrono::steady_clock;
  auto began = Clock::now();
  int status = 0;
  pid_t ended = child;
  while (child > 0 && (ended = waitpid(child, &status, WNOHANG)) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (Clock::now() - began < std::chrono::seconds(longest())) continue;
    std::fprintf(stderr, "%s: has not ended after %d s\n", test.name, longest());
    tell_threads(child);
    kill(child, SIGKILL);
    ended = waitpid(child, &status, 0);
    break;
  }
  if (ended < 0) return false;
  if (WIFSIGNALED(status)) std::fprintf(stderr, "%s: %s\n", test.name, strsignal(WTERMSIG(status)));
  double took = std::chrono::duration<double>(Clock::now() - began).count();
  if (took > 1) std::printf("  %.1f s\n", took);
  return status == 0;
}

}  // namespace

// All tests, or those whose names contain the argument, up to the first that fails.
int main(int argc, char** argv) {
  int run = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    if (!passes(test)) return 1;
    ++run;
  }
  std::printf("%d passed, 0 failed\n", run);
  return run > 0 ? 0 : 1;
}
