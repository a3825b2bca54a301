// The SIGSEGV safety net: a touch of an absent block fetches it, a first write to a read-only one is noticed.
#pragma once

namespace ebbtide {

class Arena;

// Installs the handler for `arena` (which must live for ever), ahead of whoever has it now; every fault that is not the
// arena's is passed on. Handlers installed later come first and may not pass on, so call this again whenever that may
// have happened: true if it had. The calling thread no longer blocks the signal. Also registers the fork handlers, once.
bool install_fault_handler(Arena& arena);
bool fault_handler_on_top();

// Unblocks the signal in the calling thread. The kernel ends a process without a word if a thread that blocks it faults.
void let_faults_in();

}  // namespace ebbtide
