#include "standstill.hpp"

#include <Python.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "../core/recording.hpp"

namespace ebbtide {

namespace {

constexpr auto kMostWait = std::chrono::milliseconds(100);  // for operators that have begun
constexpr auto kBetweenLooks = std::chrono::microseconds(50);

std::atomic<int> threads_in_operators = 0;
std::atomic<bool> stands_still = false;
thread_local int operators_entered = 0;  // by this thread

bool has_to_wait() { return stands_still && !off_the_record && PyGILState_Check() == 0; }

void begin_child() {  // where no other thread is
  threads_in_operators = operators_entered > 0 ? 1 : 0;
  stands_still = false;
}

}  // namespace

// Either this thread sees the standstill, or whoever makes it sees this thread.
void enter_operator() {
  if (operators_entered++ > 0) return;
  ++threads_in_operators;
  while (has_to_wait()) {
    --threads_in_operators;
    while (has_to_wait()) std::this_thread::sleep_for(kBetweenLooks);
    ++threads_in_operators;
  }
}

void leave_operator() {
  if (--operators_entered == 0) --threads_in_operators;
}

bool others_in_operators() {
  [[maybe_unused]] static const int told = pthread_atfork(nullptr, nullptr, begin_child);
  return threads_in_operators != (operators_entered > 0 ? 1 : 0);
}

Standstill::Standstill() {
  const auto latest = std::chrono::steady_clock::now() + kMostWait;
  stands_still = true;
  while (!(reached_ = !others_in_operators()) && std::chrono::steady_clock::now() < latest)
    std::this_thread::sleep_for(kBetweenLooks);
}

Standstill::~Standstill() { stands_still = false; }

}  // namespace ebbtide
