#include "fault.hpp"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "arena.hpp"

namespace ebbtide {

namespace {

// Written once, before the handler can run. Never freed: faults may come until the process is gone.
std::atomic<Arena*> guarded{nullptr};

// Who had the signal before us. A new entry each time somebody else took it; a reader may still be in an old one.
constexpr int kMostChained = 64;
struct sigaction chained_actions[kMostChained];
std::atomic<int> chained{-1};
std::mutex installing;

// initial-exec: the handler must not run the allocator that sets up dynamic thread-local storage.
__attribute__((tls_model("initial-exec"))) thread_local bool passed_on = false;

// Whether the faulting access was a write. The kernel tells through the saved registers.
bool was_write(const void* context) {
  [[maybe_unused]] auto* c = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return (c->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#elif defined(__aarch64__)
  // The exception syndrome stands in a tagged list of records; bit 6 of it is WnR.
  constexpr unsigned kEsrMagic = 0x45535201;
  auto* record = reinterpret_cast<const _aarch64_ctx*>(c->uc_mcontext.__reserved);
  while (record->magic != 0) {
    if (record->magic == kEsrMagic) return (reinterpret_cast<const esr_context*>(record)->esr & (1u << 6)) != 0;
    record = reinterpret_cast<const _aarch64_ctx*>(reinterpret_cast<const char*>(record) + record->size);
  }
  return true;  // costs a write of a block that was only read, never a lost one
#else
#error "Ebbtide runs on x86-64 and arm64"
#endif
}

void die_by_default(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
}

// A real crash: hand it to the previous owner. One that only raises the signal again (faulthandler does, after its
// report) would come back here for ever, so the second time the default ends the process.
void pass_on(int signal, siginfo_t* info, void* context) {
  bool raised = info->si_code <= 0;
  int last = chained.load(std::memory_order_acquire);
  const struct sigaction* next = last < 0 ? nullptr : &chained_actions[last];
  bool by_default = next == nullptr || next->sa_handler == SIG_DFL || next->sa_handler == SIG_IGN;
  if (by_default || (raised && passed_on)) {
    die_by_default(signal);
    if (raised) raise(signal);  // pending until the handler returns; a real fault simply happens again
    return;
  }
  passed_on = true;
  if ((next->sa_flags & SA_SIGINFO) != 0) {
    next->sa_sigaction(signal, info, context);
  } else {
    next->sa_handler(signal);
  }
}

void on_segv(int signal, siginfo_t* info, void* context) {
  int saved = errno;
  Arena* arena = guarded.load(std::memory_order_acquire);
  bool ours = info->si_code > 0 && arena != nullptr && arena->contains(info->si_addr) &&
              arena->on_fault(info->si_addr, was_write(context));
  if (!ours) pass_on(signal, info, context);
  errno = saved;
}

}  // namespace

bool fault_handler_on_top() {
  struct sigaction now;
  return sigaction(SIGSEGV, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_segv;
}

bool install_fault_handler(Arena& arena) {
  std::unique_lock lock(installing, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // somebody is at it (or was, when this process was forked)
  if (guarded.exchange(&arena, std::memory_order_acq_rel) == nullptr) {
    pthread_atfork([] { guarded.load()->before_fork(); }, [] { guarded.load()->after_fork_in_parent(); },
                   [] { guarded.load()->after_fork_in_child(); });
  }
  if (fault_handler_on_top()) return false;
  int next = chained.load() + 1;
  if (next == kMostChained) return false;  // somebody keeps taking it away; the net below it still holds
  if (sigaction(SIGSEGV, nullptr, &chained_actions[next]) != 0) return false;
  chained.store(next, std::memory_order_release);
  // On the thread's own stack: an alternate one that somebody else made may be too small for vector registers.
  struct sigaction action = {};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, nullptr);
  return true;
}

}  // namespace ebbtide
