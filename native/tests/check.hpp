// The little that the native tests need: checks that name their place, and a run that names its tests.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "../core/arena.hpp"

// Out of line: its code would stand in each build at hundreds of checks.
[[noreturn]] inline __attribute__((noinline, cold)) void fail(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
  std::abort();
}

#define CHECK(condition) ((condition) ? static_cast<void>(0) : fail(__FILE__, __LINE__, #condition))

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

#define TEST(name)                              \
  static void name();                           \
  static Register register_##name{#name, name}; \
  static void name()

// A small arena that the fault handler guards. They are leaked, as in production: the handler may still look at one.
// Its slower tiers: a spill file, unless others are given. At a test's end the invariants of all its arenas hold.
ebbtide::Arena& make_arena(std::uint64_t limit, ebbtide::Options options = {}, ebbtide::Tiers::List slower = {});
const char* spill_directory();

// Memory areas of this process that touch these bytes.
std::size_t memory_areas(const char* begin, std::size_t bytes);

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Bytes that tell their place and whose they are, and whether they still do.
inline void fill(void* p, std::size_t n, unsigned seed) {
  auto* words = static_cast<std::uint32_t*>(p);
  for (std::size_t i = 0; i < n / 4; ++i) words[i] = static_cast<std::uint32_t>(i) * 2654435761u + seed;
}

inline bool filled(const void* p, std::size_t n, unsigned seed) {
  auto* words = static_cast<const std::uint32_t*>(p);
  for (std::size_t i = 0; i < n / 4; ++i) {
    if (words[i] != static_cast<std::uint32_t>(i) * 2654435761u + seed) return false;
  }
  return true;
}

inline char* filled_block(ebbtide::Arena& arena, std::size_t n, unsigned seed) {
  auto* p = static_cast<char*>(arena.allocate(n));
  fill(p, n, seed);
  return p;
}

// Whether it returns true in a forked child, which ends with it.
template <typename Run>
bool in_child(Run run) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(run() ? 0 : 1);
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  return status == 0;
}

// What a call is refused with; "" if it is not.
template <typename Error = ebbtide::ArenaError, typename Call>
std::string refusal_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }
