#include "fault.hpp"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>

#include "arena.hpp"

namespace ebbtide {

namespace {

// Written once, before the handler can run. Never freed: faults may come until the process is gone.
std::atomic<Arena*> guarded{nullptr};

// Who had the signal before us. Made outside the handler, never changed, never freed: a handler may still be reading it.
// Whoever takes the signal again is found again, so there are as many as there are handlers in the process.
struct Owner {
  struct sigaction action;
  const Owner* older;
};
std::atomic<const Owner*> before_us{nullptr};  // the one to pass on to
const Owner* owners = nullptr;                 // all of them
std::mutex installing;                         // guards `owners`; held across a fork

// How often the same crash is handed to a handler that comes back without having ended the process or put it right (one
// that was switched off, say) and meets it again at once. Others mend what they are shown, the same place now and then.
constexpr int kPatience = 1000;
constexpr std::int64_t kAtOnceNs = 1'000'000;

// initial-exec: the handler must not run the allocator that sets up dynamic thread-local storage.
struct PassedOn {
  const void* address = nullptr;
  int times = 0;
  std::int64_t came_back_ns = 0;
};
__attribute__((tls_model("initial-exec"))) thread_local PassedOn passed_on;

// Whether the faulting access was a write. The kernel tells through the saved registers.
bool was_write(const void* context) { return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0; }

void die_by_default(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
}

// A real crash: hand it to the previous owner. One that only raises the signal again (faulthandler does, after its
// report) would come back here for ever, so the second time the default ends the process; so it does where the same
// access faults for ever.
void pass_on(int signal, siginfo_t* info, void* context) {
  bool raised = info->si_code <= 0;
  const Owner* owner = before_us.load(std::memory_order_acquire);
  bool by_default = owner == nullptr || owner->action.sa_handler == SIG_DFL || owner->action.sa_handler == SIG_IGN;
  bool again = info->si_addr == passed_on.address && now_ns() - passed_on.came_back_ns < kAtOnceNs;
  if (!raised && !again) passed_on = {info->si_addr};
  if (by_default || passed_on.times >= (raised ? 1 : kPatience)) {
    die_by_default(signal);
    if (raised) raise(signal);  // pending until the handler returns; a real fault simply happens again
    return;
  }
  ++passed_on.times;
  if ((owner->action.sa_flags & SA_SIGINFO) != 0) {
    owner->action.sa_sigaction(signal, info, context);
  } else {
    owner->action.sa_handler(signal);
  }
  passed_on.came_back_ns = now_ns();
}

void on_segv(int signal, siginfo_t* info, void* context) {
  int saved = errno;
  Arena* arena = guarded.load(std::memory_order_acquire);
  bool ours = info->si_code > 0 && arena != nullptr && arena->contains(info->si_addr) &&
              arena->on_fault(info->si_addr, was_write(context));
  if (!ours) pass_on(signal, info, context);
  errno = saved;
}

const Owner* owner_of(const struct sigaction& action) {
  for (const Owner* known = owners; known != nullptr; known = known->older) {
    // sa_handler and sa_sigaction are one pointer; the flags tell how it is called.
    if (known->action.sa_handler == action.sa_handler && known->action.sa_flags == action.sa_flags) return known;
  }
  return owners = new Owner{action, owners};
}

}  // namespace

void let_faults_in() {
  sigset_t faults;
  sigemptyset(&faults);
  sigaddset(&faults, SIGSEGV);
  pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
}

bool fault_handler_on_top() {
  struct sigaction now;
  return sigaction(SIGSEGV, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_segv;
}

bool install_fault_handler(Arena& arena) {
  let_faults_in();
  if (guarded.load(std::memory_order_acquire) == &arena && fault_handler_on_top()) return false;
  std::lock_guard lock(installing);
  if (guarded.exchange(&arena, std::memory_order_acq_rel) == nullptr) {
    // Before the lock: operators make what is away, and they may take it to put the handler on top.
    pthread_atfork([] { guarded.load()->make_before_fork(), installing.lock(), guarded.load()->before_fork(); },
                   [] { guarded.load()->after_fork_in_parent(), installing.unlock(); },
                   [] { guarded.load()->after_fork_in_child(), new (&installing) std::mutex; });
  }
  if (fault_handler_on_top()) return false;
  struct sigaction theirs;
  if (sigaction(SIGSEGV, nullptr, &theirs) != 0) return false;
  before_us.store(owner_of(theirs), std::memory_order_release);
  // On the thread's own stack: an alternate one that somebody else made may be too small for vector registers.
  struct sigaction action = {};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, nullptr);
  return true;
}

}  // namespace ebbtide
