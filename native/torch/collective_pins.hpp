// Storages that a collective works on after its operator returned.
//
// Its threads hand them to the kernel (gloo sends from them and receives into them), which does not fault like a program. So they
// stay in fast memory, writable. The operator's result says when that ends: its Work has completed, or nobody has it any more
// (gloo's queue has it while it runs). If the caller waits for a Work at once (async_op=False), it is done when that thread's
// next operator begins. Some end unseen: a process's first collective, before anybody looks at operators' results, and a Work
// that never says so. Those count as done at the end of the step after the one in which they began.
//
// A collective may make tensors for itself, in its operator or in one of its threads. (gloo's all-gather receives into one and
// copies from there.) They stay until they are dead. Such threads have nothing of Python's.
#pragma once

#include <ATen/core/ivalue.h>

namespace c10d {
class Work;
}

namespace ebbtide {

// The calling thread enters a collective's operator, or is about to leave it. Operators within make buffers for it.
void enter_collective();
void exit_collective();
// The same for a backend's own method, which is no operator. `work` is what it returned, or null.
void exit_backend(c10d::Work* work);
bool in_collective();
bool is_a_collectives_own();  // true for storages that the calling thread makes now

// Pins the managed storages in an argument of a collective, or of an operator within one.
void pin_for_collective(const c10::IValue& argument, bool waited_for);

// Unpins, since the calling thread's next outermost operator begins.
void unpin_waited_for();

// Unpins storages of collectives that have ended. `drops`: the last reference to one may be given up here, for which Python's
// lock is taken. A thread for which others wait MUST NOT do that.
void unpin_ended(bool drops);

// Says whether a collective has not ended: then pins will go without anybody here doing anything.
bool collectives_under_way();

// Unpins, since a step ended.
void unpin_last_step();

}  // namespace ebbtide
